"""Looks whether the gradients of each optimizer are cleared between two of its steps."""

from __future__ import annotations

from typing import ClassVar, Final

from torch import Tensor
from torch.optim import Optimizer

from lightning_hooks.engine.lookouts.arrivals import LEAST, ArrivalLookout, State
from lightning_hooks.engine.lookouts.surroundings import Surroundings
from lightning_hooks.engine.participants.lookout import Lookout
from lightning_hooks.records.facts import Sighting


class ClearingLookout(ArrivalLookout):
    """Looks whether an optimizer steps with gradients that are added to those of its step before.

    PyTorch counts the writes to a tensor on the host, so that no number is read: a gradient that was zeroed, or scaled down on
    purpose, has another version; one that was set to None is another object. What another loss adds to used gradients and is
    cleared before the next step, as a generator's loss in a discriminator, is in no step.
    """

    kinds: ClassVar[tuple[str, ...]] = ("gradients-kept",)

    def __init__(self, surroundings: Surroundings) -> None:
        super().__init__(surroundings)
        self._used: dict[int, State] = {}  # by the id of a parameter
        self._arriving: set[int] = set()  # the ids of parameters to whose used gradients a new one is being added
        self._sums: dict[int, State] = {}  # such sums, by the id of a parameter
        self._kept: dict[int, set[int]] = {}  # the numbers of the steps with such sums, by the optimizer

    def arrives(self, parameter: Tensor, number: int) -> None:
        key, used = id(parameter), self._used.pop(id(parameter), None)
        before = self._sums.get(key) if used is None else used
        if before is not None and parameter.grad is not None and before.is_that_of(parameter.grad):
            self._arriving.add(key)
        else:
            self._sums.pop(key, None)

    def arrived(self, parameter: Tensor, number: int) -> None:
        if id(parameter) in self._arriving:
            self._arriving.discard(id(parameter))
            self._sums[id(parameter)] = State(parameter.grad)

    def stepped(self, parameters: list[Tensor], optimizer: Optimizer, number: int) -> None:
        self.made[number] = self.made.get(number, 0) + 1
        # A sum may have been clipped since, so that its version does not count.
        if any(self._sums.pop(id(each), None) is not None and each.grad is not None for each in parameters):
            self._kept.setdefault(number, set()).add(self.made[number])
        self._used.update({id(each): State(each.grad) for each in parameters if each.grad is not None})

    def left(self) -> None:
        super().left()
        for known in (self._used, self._arriving, self._sums):
            known.clear()

    def sightings(self) -> tuple[Sighting, ...]:
        return tuple(self._sighting(number) for number, steps in self._kept.items() if len(steps) >= LEAST)

    def _sighting(self, number: int) -> Sighting:
        text = f"gradients that {self.name(number)} has used are not cleared before the next ones are added to them"
        return Sighting(self.kinds[0], text, self.rows(number))


LOOKOUTS: Final[tuple[type[Lookout], ...]] = (ClearingLookout,)
"""The lookouts of this file."""
