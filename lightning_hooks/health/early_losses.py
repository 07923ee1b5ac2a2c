"""Early losses: what a training begins from, once the bias of its head has learned how frequent each class is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from lightning_hooks.health.window import Array


class EarlyLosses:
    """The losses of the steps 20 to 40, counted from the first step of a run.

    Example:
        >>> early = EarlyLosses()
        >>> early.add(range(0, 60, 10), [2.4, 2.3, 2.2, 2.1, 2.0, 1.9])
        >>> early.values.tolist(), EarlyLosses.from_state(early.state()).values.tolist()
        ([2.2, 2.1, 2.0], [2.2, 2.1, 2.0])
    """

    FIRST: ClassVar[int] = 20
    LAST: ClassVar[int] = 40

    def __init__(self) -> None:
        self._losses: dict[int, float] = {}

    @property
    def values(self) -> Array:
        """The finite losses, in the order of their steps."""
        return np.array([self._losses[step] for step in sorted(self._losses)], dtype=np.float64)

    def add(self, steps: Iterable[int], losses: Iterable[float]) -> None:
        """Add the losses of some steps, which are counted from the first step of the run."""
        for step, loss in zip(steps, losses, strict=True):
            if self.FIRST <= step <= self.LAST and np.isfinite(loss):
                self._losses[int(step)] = float(loss)

    def forget_from(self, step: int) -> None:
        """Forget this step and later ones, because training went back to an earlier step."""
        self._losses = {known: loss for known, loss in self._losses.items() if known < step}

    def state(self) -> list[Any]:
        """The losses as plain values."""
        return [[step, self._losses[step]] for step in sorted(self._losses)]

    @classmethod
    def from_state(cls, state: Sequence[Any]) -> EarlyLosses:
        """The losses of a `state`; raises ValueError or TypeError if the state is damaged."""
        early = cls()
        early._losses = {int(step): float(loss) for step, loss in state}
        return early
