"""Statistics of units: channels, features, attention heads and experts. Nothing here is imported before it is needed."""
