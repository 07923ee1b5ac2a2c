"""The hooks of what is only looked at, compiled: the same as in `plain`, and cheaper to call.

A model fills the caches between two calls of a hook, so what a call costs is how much memory it touches. Importing this module
fails where the compiled part is absent.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor, nn

from lightning_hooks.taps import _hooks
from lightning_hooks.taps.calling import CALL, give_way, tracing_state
from lightning_hooks.taps.handles import OurHook
from lightning_hooks.taps.plain import TAKES_HOOKS, has_gradient, is_traced


class LookHook(OurHook, _hooks.Look):
    """A tensor hook for one visitor that only looks; arguments as in `plain`."""

    __slots__ = ()


class PlainHook(OurHook, _hooks.Plain):
    """A forward hook without keyword arguments; arguments as in `plain`."""

    __slots__ = ()

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        """Called by torch after the module."""
        if is_traced():  # in Python, so that a compiler sees it
            return None
        return self.run(module, args, output)


class StandIn(OurHook, _hooks.StandIn):
    """What torch calls in place of a module that has no hook but this one; arguments as in `plain`."""

    __slots__ = ()


_FLOATING = tuple(kind for kind in vars(torch).values() if isinstance(kind, torch.dtype) and kind.is_floating_point)
_hooks.setup(
    Tensor, torch._C._current_graph_task_id, (torch.float32, *_FLOATING), TAKES_HOOKS, torch.is_grad_enabled, has_gradient
)
_hooks.setup_calling(vars(sys.modules[nn.Module.__module__]), tracing_state, CALL, give_way)
