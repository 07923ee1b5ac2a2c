"""A hook on what the root module of a plain loop is given, in which nobody knows the batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from lightning_hooks.engine.lookouts.surroundings import Surroundings
from lightning_hooks.engine.participants.compiled import compiled_modules
from lightning_hooks.hooks import Handles, HookSwitch, OurHook
from lightning_hooks.nested.tensors import tensors_in


class Entry:
    """Tells what the root module is given at its first call with gradients in each step.

    Args:
        surroundings: of the run. If its driver knows the batches, nothing is hooked.
        entered: called with the tensors.
    """

    def __init__(self, surroundings: Surroundings, entered: Callable[[list[Tensor]], None]) -> None:
        self._around, self._entered = surroundings, entered
        self._is_compiled = False
        self.waits = False

    def look_up(self) -> None:
        """Look whether the root module is compiled: its hooks would become a part of its graph."""
        model = self._around.model()
        self._is_compiled = model is not None and id(model) in compiled_modules(model)

    def register(self, switch: HookSwitch, handles: Handles) -> None:
        """Register the hook."""
        model = self._around.model()
        if model is not None and not self._around.knows_batches and not self._is_compiled:
            handles.register(model.register_forward_pre_hook, _Hook(self, switch), with_kwargs=True)

    def begin_step(self) -> None:
        """Wait for the next call."""
        self.waits = True

    def note(self, given: Any) -> None:
        """Called with the arguments of each call with gradients."""
        if self.waits:
            self.waits = False
            self._entered(list(tensors_in(given)))


class _Hook(OurHook):
    """A hook on the calls of the root module, which it only notes."""

    def __init__(self, entry: Entry, switch: HookSwitch) -> None:
        self.switch = switch
        self._entry = entry

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if self.switch.is_on and torch.is_grad_enabled():
            self._entry.note((args, kwargs))
