"""The implementations between which there is a choice: compiled code or NumPy and Python, Triton or plain torch.

`choice` decides for every part; `native` is the compiled kernel.
"""

from lightning_hooks.backends.choice import VARIABLE, Decision, cuda, events, hooks, kernel, tensor_hooks

__all__ = ["VARIABLE", "Decision", "cuda", "events", "hooks", "kernel", "tensor_hooks"]
