"""The hooks of what is only looked at, compiled: the same as in `plain`, and cheaper to call.

A model fills the caches between two calls of a hook, so what a call costs is how much memory it touches. Importing this module
fails where the compiled part is absent.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lightning_hooks.taps import _hooks
from lightning_hooks.taps.handles import OurHook


class LookHook(OurHook, _hooks.Look):
    """A tensor hook for one visitor that only looks; arguments as in `plain`."""

    __slots__ = ()


class PlainHook(OurHook, _hooks.Plain):
    """A forward hook without keyword arguments; arguments as in `plain`."""

    __slots__ = ()

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        """Called by torch after the module."""
        if _is_traced():  # in Python, so that a compiler sees it
            return None
        return self.run(module, args, output)


_is_traced = torch.compiler.is_dynamo_compiling  # without the tracers whose tensors are of a type of their own


def _takes_hooks() -> bool:
    """Whether a tensor's hooks can be put in place at once, as `Tensor.register_hook` does it step by step."""
    tensor = torch.zeros(1, requires_grad=True).clone()
    return hasattr(tensor, "_backward_hooks") and hasattr(tensor.grad_fn, "_register_hook_dict")


_FLOATING = tuple(kind for kind in vars(torch).values() if isinstance(kind, torch.dtype) and kind.is_floating_point)
_hooks.setup(Tensor, torch._C._current_graph_task_id, (torch.float32, *_FLOATING), _takes_hooks())
