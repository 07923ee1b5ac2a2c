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
    """Looks whether a gradient that an optimizer has used is still there when the next one arrives.

    PyTorch counts the writes to a tensor on the host, so that no number is read: a gradient that was zeroed, or scaled down on
    purpose, has another version; one that was set to None is another object.
    """

    kinds: ClassVar[tuple[str, ...]] = ("gradients-kept",)

    def __init__(self, surroundings: Surroundings) -> None:
        super().__init__(surroundings)
        self._used: dict[int, State] = {}  # by the id of a parameter
        self._kept: dict[int, set[int]] = {}  # the numbers of the steps after which gradients were kept, by the optimizer

    def arrives(self, parameter: Tensor, number: int) -> None:
        used = self._used.pop(id(parameter), None)
        if used is not None and parameter.grad is not None and used.is_that_of(parameter.grad):
            self._kept.setdefault(number, set()).add(self.made[number])

    def stepped(self, parameters: list[Tensor], optimizer: Optimizer, number: int) -> None:
        self.made[number] = self.made.get(number, 0) + 1
        self._used.update({id(each): State(each.grad) for each in parameters if each.grad is not None})

    def left(self) -> None:
        super().left()
        self._used.clear()

    def sightings(self) -> tuple[Sighting, ...]:
        return tuple(self._sighting(number) for number, steps in self._kept.items() if len(steps) >= LEAST)

    def _sighting(self, number: int) -> Sighting:
        text = f"gradients that {self.name(number)} has used are not cleared before the next ones are added to them"
        return Sighting(self.kinds[0], text, self.rows(number))


LOOKOUTS: Final[tuple[type[Lookout], ...]] = (ClearingLookout,)
"""The lookouts of this file."""
