"""Plan of a monitor: the rows that its rules request of a model, and their refresh when a fit replaces modules."""
