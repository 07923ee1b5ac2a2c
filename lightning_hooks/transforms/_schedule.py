"""Numbers that depend on the step, from a piecewise linear curve or from a user's function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lightning_hooks.errors import RuleError, TransformError, shown
from lightning_hooks.transforms._check import GREATEST, is_finite, is_whole

Points = tuple[tuple[int, float], ...]


def as_points(given: object, where: str) -> Points:
    """Check the corners of a piecewise linear curve, and return them as pairs (step, factor).

    Args:
        given: a list of pairs (step, factor) with ascending steps.
        where: names the option in messages.

    Raises:
        RuleError: `given` is not such a list, or a factor overflows float32.

    Example:
        >>> as_points([[0, 0.0], [100, 1.0]], "points")
        ((0, 0.0), (100, 1.0))
    """
    expected = f"{where} must be a list of pairs (step, factor)"
    if isinstance(given, str) or not isinstance(given, Sequence) or not given:
        raise RuleError(f"{expected}, got {given!r}")
    points: list[tuple[int, float]] = []
    for pair in given:
        if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != 2:
            raise RuleError(f"{expected}, got {pair!r} among them")
        step, factor = pair
        if not is_whole(step) or step < 0:
            raise RuleError(f"{expected} with steps from 0, got the step {shown(step)}")
        if not is_finite(factor) or abs(factor) > GREATEST:
            raise RuleError(f"{expected} with factors that are finite in float32, got the factor {shown(factor)}")
        if points and step <= points[-1][0]:
            raise RuleError(f"{expected} in the order of the steps, got {step} after {points[-1][0]}")
        points.append((step, factor))
    return tuple(points)


@dataclass(frozen=True)
class Curve:
    """Linear interpolation between points; constant before the first and after the last.

    Example:
        >>> Curve(((0, 0.0), (100, 1.0)))(25)
        0.25
    """

    points: Points

    def __call__(self, step: int) -> float:
        """The number at a step."""
        previous = None
        for point_step, factor in self.points:
            if step <= point_step:
                if previous is None or step == point_step:
                    return float(factor)
                fraction = (step - previous[0]) / (point_step - previous[0])
                return float(previous[1] + fraction * (factor - previous[1]))
            previous = (point_step, factor)
        return float(self.points[-1][1])


def number_at(schedule: Callable[[int], Any], step: int, where: str) -> float:
    """The number that a user's schedule returns for a step; messages name the option `where`.

    Raises:
        TransformError: the schedule returned anything but a finite number.
    """
    value = schedule(step)
    if not is_finite(value):
        raise TransformError(f"{where} must give a finite number, and gave {shown(value)} at step {step}")
    return float(value)
