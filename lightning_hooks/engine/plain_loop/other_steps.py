"""Notices that a loop trains with an optimizer that `instrument` was not given, so that its block does not end in silence."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from threading import get_ident
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, ref

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from lightning_hooks.hooks import Handles, OurHook


class _Kind(NamedTuple):
    """What is known of an optimizer that was not given; `shares` says whether it holds a parameter of the model."""

    shares: bool
    name: str


class OtherSteps(OurHook):
    """Counts the steps of optimizers until one that was given begins a step, in the thread that entered the block.

    Args:
        model: the root module, held by a weak reference.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = ref(model)
        self._thread = get_ident()
        self._handle: Any = None
        self._kinds: WeakKeyDictionary[Optimizer, _Kind] = WeakKeyDictionary()
        self._steps: Counter[_Kind] = Counter()

    def register(self, handles: Handles) -> None:
        """Register a hook that torch calls after the steps of all optimizers."""
        handles.keep(self)
        # Importing Dynamo takes seconds. If a step is compiled later, the hook is traced, and does nothing.
        is_imported = "torch._dynamo" in sys.modules
        self._handle = register_optimizer_step_post_hook(torch.compiler.disable(self) if is_imported else self)

    def remove(self) -> None:
        """Remove the hook; a second call does nothing."""
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.remove()

    def forget(self) -> None:
        """Remove the hook, because the loop steps as `instrument` was told."""
        self.remove()
        self._steps.clear()

    def __call__(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_compiling() or get_ident() != self._thread:
            return
        kind = self._kinds.get(optimizer)
        if kind is None:
            kind = self._kinds[optimizer] = _Kind(self._shares(optimizer), type(optimizer).__name__)
        self._steps[kind] += 1

    def _shares(self, optimizer: Optimizer) -> bool:
        model = self._model()
        known = set() if model is None else set(map(id, model.parameters()))
        return any(id(each) in known for group in optimizer.param_groups for each in group["params"])

    def complaint(self, given: Sequence[Any], model: nn.Module) -> str:
        """What is wrong with a block in which no step ended; empty if no other optimizer has stepped.

        Args:
            given: the optimizers that `instrument` was given.
            model: the root module.
        """
        if not self._steps:
            return ""
        kind, steps = max(self._steps.items())
        names = ", ".join(type(each).__name__ for each in given)
        unused = f"the optimizer{'s' * (len(given) > 1)} given ({names}) never stepped"
        if kind.shares:
            reason = f"holds parameters of {type(model).__name__}; give it as optimizer="
        else:
            reason = (
                f"holds none of the parameters of {type(model).__name__}, so the loop trains another model, such as a copy or "
                "one that was made again; give instrument the model and the optimizer of the loop"
            )
        return (
            "instrument: no step ended, and nothing was measured: "
            f"{unused if given else 'neither optimizer= was given nor step() called'}, but {'another' if given else 'one'} "
            f"({kind.name}) stepped {'once' if steps == 1 else f'{steps} times'}. It {reason}"
        )
