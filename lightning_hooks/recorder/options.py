"""The options of a flight recorder, checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from lightning_hooks.errors import RuleError, did_you_mean, shown
from lightning_hooks.rules.fields import as_count, check_flag

EVENTS: Final = ("nonfinite", "exception")


@dataclass(frozen=True)
class RecorderOptions:
    """What a flight recorder records and keeps.

    Args:
        last: the number of calls in the record, and of the steps whose largest magnitudes it has.
        on: what is recorded, `nonfinite`, `exception`, or both.
        batch: whether the batch and the states of the generators are saved with the record.
        weights: whether parameters, buffers and the state of the optimizers are saved too.
        autopsy: whether the training step runs again at once, to name the operation.
        limit: seconds after which that run is stopped.

    Raises:
        RuleError: an unknown event, or an argument of the wrong type.

    Example:
        >>> RecorderOptions(on="exception").on
        ('exception',)
    """

    last: int = 200
    on: str | Sequence[str] = EVENTS
    batch: bool = True
    weights: bool = False
    autopsy: bool = True
    limit: float = 60.0

    def __post_init__(self) -> None:
        as_count("last", self.last, 1)
        if not isinstance(self.on, (str, list, tuple)) or not self.on:
            raise RuleError(f"on must be one or more of {', '.join(EVENTS)}, got {shown(self.on)}")
        object.__setattr__(self, "on", (self.on,) if isinstance(self.on, str) else tuple(self.on))
        for event in self.on:
            if event not in EVENTS:
                suggestion = did_you_mean(event, EVENTS, 1) if isinstance(event, str) else ""
                raise RuleError(f"on: choose from {', '.join(EVENTS)}, got {shown(event)}{suggestion}")
        for name in ("batch", "weights", "autopsy"):
            check_flag(name, getattr(self, name))
        if not isinstance(self.limit, (int, float)) or isinstance(self.limit, bool) or not 0 < self.limit < 1e9:
            raise RuleError(f"limit must be a number of seconds above 0 and below 1e9, got {shown(self.limit)}")

    @property
    def keeps(self) -> tuple[str, ...]:
        """The parts of the training that are saved beside the record: `batch`, `weights`, both or none."""
        return tuple(name for name in ("batch", "weights") if getattr(self, name))
