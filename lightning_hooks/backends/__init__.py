"""What serves where there is a choice: compiled code or NumPy, compiled hooks or Python, Triton or plain torch.

`choice` decides, for everything; `native` is the compiled kernel.
"""

from lightning_hooks.backends.choice import VARIABLE, Decision, cuda, events, hooks, kernel

__all__ = ["VARIABLE", "Decision", "cuda", "events", "hooks", "kernel"]
