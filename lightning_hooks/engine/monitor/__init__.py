"""One monitor at work: what its hooks and the phases of an optimizer step write into its table."""
