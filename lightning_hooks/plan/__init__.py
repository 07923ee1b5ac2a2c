"""Rules resolved against a model: the rows of a monitor, and keeping them when a fit replaces modules."""
