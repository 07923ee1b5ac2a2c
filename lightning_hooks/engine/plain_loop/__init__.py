"""`instrument`: the engine around a plain PyTorch loop or in a notebook."""
