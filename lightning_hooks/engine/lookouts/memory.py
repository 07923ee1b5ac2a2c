"""Looks which parameters lie in memory in another order than that of their elements, so that code may write into a copy."""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar, Final

from lightning_hooks.engine.lookouts.surroundings import Surroundings
from lightning_hooks.engine.participants.lookout import Lookout
from lightning_hooks.records.facts import Sighting
from lightning_hooks.tensor_kinds import is_dense

_MOST: Final = 200
"""The number of parameters that are named at most."""


class MemoryLookout(Lookout):
    """Looks at the first step which parameters of the optimizers are not contiguous.

    That is no fault: a transposed weight is not, nor is one of a convolution in the format `channels_last`. A rule tells it of
    parameters that the step of their optimizer does not change.
    """

    kinds: ClassVar[tuple[str, ...]] = ("not-contiguous",)

    def __init__(self, surroundings: Surroundings) -> None:
        self._around = surroundings
        self._found: tuple[Sighting, ...] | None = None

    def step_key(self, step: int, stage: str) -> Hashable | None:
        return "memory" if stage == "train" and self._found is None else None

    def end_step(self) -> None:
        names = self._around.names()
        held = [each for _, parameters in self._around.parameters() for each in parameters if id(each) in names]
        rows = [names[id(each)] for each in held if is_dense(each) and not each.is_contiguous()]
        text = "the parameter is not contiguous in memory"
        self._found = (Sighting("not-contiguous", text, tuple(dict.fromkeys(rows))[:_MOST], is_fact=False),) if rows else ()

    def sightings(self) -> tuple[Sighting, ...]:
        return self._found or ()


LOOKOUTS: Final[tuple[type[Lookout], ...]] = (MemoryLookout,)
"""The lookouts of this file."""
