"""What is computed of a tensor, and the table it lands in. Knows torch, neither hooks nor transforms."""
