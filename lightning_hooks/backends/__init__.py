"""The choice between implementations: compiled code or Python, Triton or plain torch.

`choice` chooses an implementation for every part of the package. `native` is the compiled kernel.
"""

from lightning_hooks.backends.choice import VARIABLE, Decision, cuda, events, hooks, kernel, tensor_hooks

__all__ = ["VARIABLE", "Decision", "cuda", "events", "hooks", "kernel", "tensor_hooks"]
