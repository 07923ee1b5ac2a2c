"""Lookout: a participant that looks at the code around the model, and says what it has seen as facts of the steps."""

from __future__ import annotations

from typing import ClassVar

from lightning_hooks.engine.participants.participant import Participant
from lightning_hooks.records.facts import Sighting


class Lookout(Participant):
    """Looks at one part of the code around a model: its optimizers, its loss, its batches. It changes nothing.

    A health rule with its kinds in `looks_for` tells what it has seen.

    Attributes:
        kinds: of the sightings that it looks for.
    """

    kinds: ClassVar[tuple[str, ...]] = ()

    def sightings(self) -> tuple[Sighting, ...]:
        """What it has seen so far, as far as that still holds. Called once at each step whose facts are read."""
        return ()

    def of_step(self, step: int) -> tuple[Sighting, ...]:
        """What it knows by now of one of the last steps. Called when a rule has found something at that step."""
        return ()
