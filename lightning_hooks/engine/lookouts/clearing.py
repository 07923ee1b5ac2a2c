"""Looks whether the gradients of each optimizer are cleared between two of its steps."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, ClassVar, Final, NamedTuple

from torch import Tensor
from torch.optim import Optimizer

from lightning_hooks.engine.lookouts.surroundings import Surroundings
from lightning_hooks.engine.participants.lookout import Lookout
from lightning_hooks.engine.participants.participant import PhaseMemo
from lightning_hooks.hooks import Handles, HookSwitch, OurHook
from lightning_hooks.records.facts import Sighting

STEPS: Final = 12
"""The number of first steps that are looked at."""
_LEAST: Final = 3
"""The number of steps at which gradients must have been kept: a loop may begin in the middle of an accumulation."""
_MOST: Final = 4
"""The number of parameters of an optimizer that are looked at."""


class _Used(NamedTuple):
    """A gradient that an optimizer has used: the object, and how often its memory had been written to."""

    gradient: Tensor
    version: int


class ClearingLookout(Lookout):
    """Looks whether a gradient that an optimizer has used is still there when the next one arrives.

    PyTorch counts the writes to a tensor on the host, so that no number is read: a gradient that was zeroed, or scaled down on
    purpose, has another version; one that was set to None is another object.
    """

    kinds: ClassVar[tuple[str, ...]] = ("gradients-kept",)
    reads_updates = True

    def __init__(self, surroundings: Surroundings) -> None:
        self._around = surroundings
        self._used: dict[int, _Used] = {}  # by the id of a parameter
        self._of: dict[int, int] = {}  # the number of the optimizer, by the id of a parameter
        self._kept: dict[int, set[int]] = {}  # the steps at which gradients were kept, by the number of an optimizer
        self._step = 0
        self._looked = 0

    def step_key(self, step: int, stage: str) -> Hashable | None:
        return "clearing" if stage == "train" and self._looked < STEPS else None

    def begin_step(self, step: int, stage: str, reporting: bool) -> None:
        self._step = step
        self._looked += 1

    def register(self, key: Any, switch: HookSwitch, handles: Handles) -> None:
        for number, parameters in self._around.parameters():
            for parameter in parameters[:: max(1, len(parameters) // _MOST)][:_MOST]:
                self._of[id(parameter)] = number
                handles.register(parameter.register_hook, _Arrival(self, parameter, switch))

    def arrived(self, parameter: Tensor) -> None:
        """Called when a gradient of a parameter arrives, before it is added to what is there."""
        used = self._used.pop(id(parameter), None)
        if used is not None and parameter.grad is used.gradient and used.gradient._version == used.version:
            self._kept.setdefault(self._of[id(parameter)], set()).add(self._step)

    def after_update(self, optimizer: Optimizer, memo: PhaseMemo) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) in self._of and parameter.grad is not None:
                    self._used[id(parameter)] = _Used(parameter.grad, parameter.grad._version)

    def end_step(self) -> None:
        if self._looked >= STEPS:
            self._used.clear()

    def left(self) -> None:
        self._used.clear()

    def sightings(self) -> tuple[Sighting, ...]:
        several = len(self._around.optimizers()) > 1
        kept = {number: steps for number, steps in self._kept.items() if len(steps) >= _LEAST}
        return tuple(self._sighting(number, several) for number in kept)

    def _sighting(self, number: int, several: bool) -> Sighting:
        optimizer = self._around.optimizers()[number]
        which = f"optimizer {number} ({type(optimizer).__name__})" if several else "the optimizer"
        names = self._around.names()
        held = [names[id(each)] for group in optimizer.param_groups for each in group["params"] if id(each) in names]
        text = f"gradients that {which} has used are not cleared before the next ones are added to them"
        return Sighting("gradients-kept", text, tuple(held[:1]) if several else ())


class _Arrival(OurHook):
    """A hook on the gradient of a parameter, which it only notes."""

    def __init__(self, lookout: ClearingLookout, parameter: Tensor, switch: HookSwitch) -> None:
        self.switch = switch
        self._lookout, self._parameter = lookout, parameter

    def __call__(self, gradient: Tensor) -> None:
        if self.switch.is_on:
            self._lookout.arrived(self._parameter)


LOOKOUTS: Final[tuple[type[Lookout], ...]] = (ClearingLookout,)
"""The lookouts of this file."""
