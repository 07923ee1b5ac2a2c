"""One monitor during a run: what its hooks and the phases of an optimizer step write into its table."""
