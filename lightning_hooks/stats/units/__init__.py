"""Statistics of units: channels, features, attention heads and experts. This package imports none of its modules."""
