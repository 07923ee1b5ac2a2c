"""A step that is under way: who acts in it, and what its hooks have seen so far."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from lightning_hooks.engine.participant import Participant


@dataclass
class OpenStep:
    """A step that has begun and not ended. A validation run may fall into a step of training: each stage has its own."""

    step: int
    active: list[tuple[Participant, Hashable]]
    called: set[int] = field(default_factory=set)
    key: tuple[Any, ...] = ()  # equal for steps that need the same hooks
    actors: list[Participant] = field(default_factory=list)
    reports: bool = False  # whether any of them has what transforms report be written

    def __post_init__(self) -> None:
        self.key = tuple([(id(p), key) for p, key in self.active])
        self.actors = [p for p, _ in self.active]
        self.reports = any(p.reports for p in self.actors)

    def open_anew(self, step: int) -> None:
        """Begin another step in which the same is done, and in which no module was called yet.

        Args:
            step: its number.
        """
        self.step = step
        self.called.clear()

    def let_go(self, participant: Participant) -> None:
        """Go on without a participant."""
        self.active = [(p, key) for p, key in self.active if p is not participant]
        self.__post_init__()
