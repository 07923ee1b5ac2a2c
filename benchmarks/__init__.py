"""What watching costs: `python -m benchmarks.run`, or `make bench`."""
