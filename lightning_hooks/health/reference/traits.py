"""Traits: what is always true of a row in a good run, as its measurements show. They are compared exactly.

A trait that varies from step to step in a good run is not compared: layers may be dropped at random, batches differ in length.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.health.window import Array

MOST_COUNTS: Final = 8
"""With more different numbers of elements, the number is not compared."""
BFLOAT16_DIGITS, FLOAT16_DIGITS = 8, 11
"""The binary digits of a number in these formats."""


@dataclass
class Traits:
    """The traits of the rows of one tensor, by the name of the row.

    Args:
        present: whether the row was measured at every step at which it was due (True), at none (False), or at some (None).
        moves: of updates: whether a measured update was above 0 at every step (True), at none (False), or at some (None).
        counts: the numbers of elements that were measured, ascending; empty if there are too many.
        digits: of outputs: the least and the largest number of binary digits that the extremes of a step needed.
        jump: of parameters: the largest change of the weight between two views, as a multiple of what the updates around them
            explain.
        repeats: of inputs: the share of measured steps whose input equals that of the measured step before.
    """

    present: dict[str, bool | None] = field(default_factory=dict)
    moves: dict[str, bool | None] = field(default_factory=dict)
    counts: dict[str, tuple[int, ...]] = field(default_factory=dict)
    digits: dict[str, tuple[int, int]] = field(default_factory=dict)
    jump: dict[str, float] = field(default_factory=dict)
    repeats: dict[str, float] = field(default_factory=dict)


def significant_digits(values: Array) -> NDArray[np.intp]:
    """The binary digits that numbers need; 0 for 0 and for numbers that are not finite.

    Numbers are rounded to float32 first, as an event file stores them.

    Example:
        >>> significant_digits(np.array([0.0, 1.0, 0.75, 0.1])).tolist()
        [0, 1, 2, 24]
    """
    bits = np.where(np.isfinite(values), values, 0.0).astype(np.float32).view(np.uint32)
    fraction = (bits & np.uint32(0x7FFFFF)) | np.uint32(0x800000)
    lowest = fraction & (~fraction + np.uint32(1))  # the lowest bit that is set
    digits = 24 - np.log2(lowest.astype(np.float64)).astype(np.intp)
    exponent = bits & np.uint32(0x7F800000)
    return np.where(exponent == 0, 0, digits)


def digits_of(low: Array, high: Array) -> NDArray[np.intp]:
    """The binary digits that the smallest and the largest element of a tensor need."""
    found: NDArray[np.intp] = np.maximum(significant_digits(low), significant_digits(high))
    return found


def merged(traits: Sequence[Traits]) -> Traits:
    """What is true in all of several good runs."""
    return Traits(
        _agreed([each.present for each in traits]),
        _agreed([each.moves for each in traits]),
        {name: _united([each.counts.get(name) for each in traits]) for name in _names(each.counts for each in traits)},
        {name: _widest([each.digits.get(name) for each in traits]) for name in _names(each.digits for each in traits)},
        _largest([each.jump for each in traits]),
        _largest([each.repeats for each in traits]),
    )


def _names(mappings: Iterable[Mapping[str, object]]) -> list[str]:
    return list(dict.fromkeys(name for each in mappings for name in each))


def _agreed(verdicts: Sequence[Mapping[str, bool | None]]) -> dict[str, bool | None]:
    found = {name: {each[name] for each in verdicts if name in each} for name in _names(verdicts)}
    return {name: next(iter(values)) if len(values) == 1 else None for name, values in found.items()}


def _united(counts: Sequence[tuple[int, ...] | None]) -> tuple[int, ...]:
    known = [each for each in counts if each is not None]
    together = sorted({count for each in known for count in each})
    return () if () in known or len(together) > MOST_COUNTS else tuple(together)


def _widest(digits: Sequence[tuple[int, int] | None]) -> tuple[int, int]:
    known = [each for each in digits if each is not None]
    return min(least for least, _ in known), max(most for _, most in known)


def _largest(numbers: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: max(each[name] for each in numbers if name in each) for name in _names(numbers)}


@dataclass(frozen=True)
class Moved:
    """How far weights moved between two views, at the least, and what the updates around explain.

    Args:
        steps: the later step of each pair, int64 [pairs].
        multiples: the distance as a multiple of the updates, float64 [pairs, rows]; NaN where nobody knows.
    """

    steps: NDArray[np.int64]
    multiples: Array


def jumps(steps: NDArray[np.int64], numbers: Mapping[str, Array]) -> Moved:
    """How far each weight moved between neighbouring views, as a multiple of what its updates explain.

    The distance of two tensors of n elements is at least √n times that of (mean, standard deviation), and the distance of their
    largest magnitudes is at most that of some element. The updates between two views are at most as large as the larger of
    the two updates that were measured, times the number of steps.

    Args:
        steps: int64 [steps].
        numbers: `mean`, `std`, `abs_max`, `count` and `norm` of the weight, `update` (norm) and `update_max` (largest
            magnitude) of its update; each float64 [steps, rows].
    """
    if len(steps) < 2:
        return Moved(steps[:0], np.zeros((0, numbers["mean"].shape[1])))
    gaps = np.diff(steps)[:, None].astype(np.float64)

    def change(name: str) -> Array:
        result: Array = np.abs(np.diff(numbers[name], axis=0))
        return result

    def larger(name: str) -> Array:
        result: Array = np.fmax(numbers[name][1:], numbers[name][:-1])
        return result

    with np.errstate(invalid="ignore", divide="ignore"):
        distance = np.sqrt(numbers["count"][1:]) * np.hypot(change("mean"), change("std"))
        explained = gaps * larger("update") + 1e-5 * larger("norm")
        largest = change("abs_max")
        explained_max = gaps * larger("update_max") + 1e-5 * larger("abs_max")
        multiples = np.fmax(distance / explained, largest / explained_max)
    known = np.isfinite(numbers["update"][1:]) & np.isfinite(numbers["update"][:-1])
    return Moved(steps[1:], np.where(known, multiples, np.nan))


def repeated(numbers: Mapping[str, Array]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Whether the input of each row equals that of the line before, and whether both were measured, bool [lines - 1, rows].

    Args:
        numbers: `mean`, `std` and `abs_max` of the inputs, each float64 [lines, rows]: equal inputs have equal statistics.
            Inputs of one constant do not count.
    """
    same = numbers["std"][1:] > 0
    known = np.ones(same.shape, dtype=np.bool_)
    for name in ("mean", "std", "abs_max"):
        # Compare what an event file holds: float32.
        rounded = numbers[name].astype(np.float32)
        known &= np.isfinite(rounded[1:]) & np.isfinite(rounded[:-1])
        same &= rounded[1:] == rounded[:-1]
    return same & known, known
