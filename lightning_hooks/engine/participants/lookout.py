"""Lookout: a participant that looks at the code around the model, and says what it has seen as facts of the steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from torch import Tensor

from lightning_hooks.engine.participants.participant import Active, Participant
from lightning_hooks.records.facts import Sighting


class Lookout(Participant):
    """Looks at one part of the code around a model: its optimizers, its loss, its batches. It changes nothing.

    A health rule with its kinds in `looks_for` tells what it has seen.

    Attributes:
        kinds: of the sightings that it looks for.
    """

    kinds: ClassVar[tuple[str, ...]] = ()

    def saw_batch(self, batch: Any) -> None:
        """Called with each batch of a step in which it acts, by drivers that know the batches: not in a plain loop."""

    def saw_loss(self, loss: Tensor) -> None:
        """Called with the loss and its graph before its backward, in a step in which it acts.

        A Trainer gives it as it is differentiated, divided for an accumulation and multiplied by a loss scale.
        """

    def sightings(self) -> tuple[Sighting, ...]:
        """What it has seen so far, as far as that still holds. Called once at each step whose facts are read."""
        return ()

    def of_step(self, step: int) -> tuple[Sighting, ...]:
        """What it knows by now of one of the last steps. Called when a rule has found something at that step."""
        return ()


def lookouts_in(active: Active) -> Iterator[Lookout]:
    """The lookouts among the participants that act in a step."""
    return (participant for participant, _ in active if isinstance(participant, Lookout))
