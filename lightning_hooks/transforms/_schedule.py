"""Numbers that depend on the step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lightning_hooks.errors import RuleError, TransformError, shown
from lightning_hooks.transforms._check import GREATEST, is_finite, is_whole

Points = tuple[tuple[int, float], ...]


def as_points(given: object, where: str) -> Points:
    """Read the corners of a piecewise linear curve.

    Args:
        given: a list of pairs of a step and a number, the steps rising.

    Raises:
        RuleError: it is not such a list.

    Example:
        >>> as_points([[0, 0.0], [100, 1.0]], "points")
        ((0, 0.0), (100, 1.0))
    """
    wanted = f"{where} must be a list of pairs (step, factor)"
    if isinstance(given, str) or not isinstance(given, Sequence) or not given:
        raise RuleError(f"{wanted}, got {given!r}")
    points: list[tuple[int, float]] = []
    for pair in given:
        if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != 2:
            raise RuleError(f"{wanted}, got {pair!r} among them")
        step, factor = pair
        if not is_whole(step) or step < 0:
            raise RuleError(f"{wanted} with steps from 0, got the step {shown(step)}")
        if not is_finite(factor) or abs(factor) > GREATEST:
            raise RuleError(f"{wanted} with factors that are finite in float32, got the factor {shown(factor)}")
        if points and step <= points[-1][0]:
            raise RuleError(f"{wanted} in the order of the steps, got {step} after {points[-1][0]}")
        points.append((step, factor))
    return tuple(points)


@dataclass(frozen=True)
class Curve:
    """Straight lines from point to point, level before the first and after the last.

    Example:
        >>> Curve(((0, 0.0), (100, 1.0)))(25)
        0.25
    """

    points: Points

    def __call__(self, step: int) -> float:
        """The number at a step."""
        before = None
        for at, factor in self.points:
            if step <= at:
                if before is None or step == at:
                    return float(factor)
                share = (step - before[0]) / (at - before[0])
                return float(before[1] + share * (factor - before[1]))
            before = (at, factor)
        return float(self.points[-1][1])


def number_at(schedule: Callable[[int], Any], step: int, where: str) -> float:
    """What a user's schedule gives at a step.

    Raises:
        TransformError: it gives anything but a finite number.
    """
    value = schedule(step)
    if not is_finite(value):
        raise TransformError(f"{where} must give a finite number, and gave {shown(value)} at step {step}")
    return float(value)
