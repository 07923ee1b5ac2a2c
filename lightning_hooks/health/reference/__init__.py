"""Compares a run with runs that were good: bands for its numbers, and facts that are compared exactly."""
