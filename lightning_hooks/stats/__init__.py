"""The measurement of tensors, the statistics of the measured numbers, and the table that collects them for each step."""
