"""Nested values with tensors: what a batch, or the arguments and the result of a module, consist of."""
