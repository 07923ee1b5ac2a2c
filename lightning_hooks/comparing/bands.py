"""Compares with bands: how far numbers are outside of what another seed explains.

The bands of good runs say between which numbers a statistic of each row lay, by step. Of two single runs, the band is a factor
and the variation of each row from step to step.

Numbers are compared as logarithms, so that a distance is a factor. Steps are divided into buckets, four for each doubling.
A training with another seed may learn sooner or later. So a number is compared with what good runs had from a quarter to four
times its step, and in the first 25 steps from half to twice its step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lightning_hooks.comparing.exact import Array, Indices, Mask, firsts

Key = tuple[str, str]
"""A tensor and a statistic."""

SHARE: Final = "zero_fraction"
LOSS_KEY: Final = ("loss", "mean")
_PER_OCTAVE: Final = 4
EARLY: Final = 25
"""The first steps, in which trainings that differ in their seed have not gone different ways."""
_EARLY_AHEAD, _AHEAD = 2.0, 4.0
"""How many times sooner or later another seed may be."""
_EARLY_MORE, _MORE = 1.0, 4.0
"""The steps by which it may be so in addition."""
_LEAST: Final = 1e-27  # a smaller norm counts as this
_LEAST_SHARE: Final = 0.02  # added to shares, so that 0.001 and 0.002 are nearly the same
_FACTOR: Final = float(np.log2(1.25))
"""The smallest factor by which two runs differ, as a logarithm to base 2."""
_SHARE: Final = 0.9  # of the steps from the first one on
_FEWEST: Final = 5  # steps for which a difference must last
_SHORTEST: Final = 0.1  # the share of all steps for which a difference must last
_EDGES: Final = np.geomspace(1e-4, 16.0, 69)
"""The edges of the buckets for changes between two measurements, in units of the logarithm."""


def bucket_of(steps: ArrayLike) -> NDArray[np.intp]:
    """The bucket of each step.

    Example:
        >>> bucket_of(np.array([0, 1, 2, 3, 10, 100, 1000])).tolist()
        [0, 1, 2, 3, 7, 18, 31]
    """
    found: NDArray[np.intp] = np.floor(_PER_OCTAVE * np.log2(1 + np.asarray(steps) / _PER_OCTAVE)).astype(np.intp)
    return found


def logarithms(key: Key, values: Array, scale: float | None = None) -> Array:
    """Numbers on the scale on which they are compared; NaN for numbers that are not finite.

    Args:
        key: the tensor and the statistic.
        values: any shape.
        scale: for a loss that may be negative: below this magnitude numbers are compared by their difference.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        if key[1] == SHARE:
            result = np.log(np.maximum(values, 0.0) + _LEAST_SHARE)
        elif scale is not None:
            result = np.arcsinh(values / scale)
        else:
            result = np.log(np.maximum(values, _LEAST))
    return np.where(np.isfinite(values), result, np.nan)


@dataclass(frozen=True, eq=False)
class Bands:
    """The bands of one statistic of one tensor.

    Args:
        key: the tensor and the statistic.
        names: of the rows.
        low: the smallest logarithm in each bucket, float64 [buckets, rows]; NaN where none was measured.
        high: the largest, likewise.
        noise: by how much a number usually differs from the one measured before, as the standard deviation of the logarithm,
            float64 [rows].
        spread: how far the good runs are apart, float64 [rows]; 0 of a single run.
        scale: as of `logarithms`.
    """

    key: Key
    names: tuple[str, ...]
    low: Array
    high: Array
    noise: Array
    spread: Array
    scale: float | None = None

    def around(self, steps: NDArray[np.int64]) -> tuple[Array, Array]:
        """The smallest and the largest logarithm that good runs had around each step, float64 [steps, rows]."""
        low = np.full((len(steps), len(self.names)), np.nan)
        high = low.copy()
        times, more = np.where(steps < EARLY, _EARLY_AHEAD, _AHEAD), np.where(steps < EARLY, _EARLY_MORE, _MORE)
        firsts = bucket_of(np.maximum(0, steps / times - more)).tolist()
        lasts = bucket_of(steps * times + more).tolist()
        for line, (first, last) in enumerate(zip(firsts, lasts, strict=True)):
            if first < len(self.low):
                low[line] = np.fmin.reduce(self.low[first : last + 1], axis=0)
                high[line] = np.fmax.reduce(self.high[first : last + 1], axis=0)
        return low, high

    def outside(self, values: Array, low: Array, high: Array) -> Array:
        """The distance of numbers from their edges, as logarithms: negative below, 0 inside; NaN if one of the two is missing.

        Args:
            values: float64 [steps, rows], the rows in the order of `names`.
            low: of `around`.
            high: likewise.
        """
        found = logarithms(self.key, values, self.scale)
        return np.where(found > high, found - high, np.where(found < low, found - low, 0.0 * (found + low)))

    def value(self, logarithm: float) -> float:
        """The number whose logarithm, as of `logarithms`, this is."""
        if self.key[1] == SHARE:
            return max(0.0, float(np.exp(logarithm)) - _LEAST_SHARE)
        return float(np.exp(logarithm)) if self.scale is None else float(np.sinh(logarithm) * self.scale)


class BandLearner:
    """Learns the bands of one statistic from one run, from its views in chunks.

    Args:
        key: the tensor and the statistic.
        names: of the rows.
        scale: as of `logarithms`.
    """

    def __init__(self, key: Key, names: Sequence[str], scale: float | None = None) -> None:
        self.key, self.names, self.scale = key, tuple(names), scale
        self._low = np.full((0, len(names)), np.nan)
        self._high = self._low.copy()
        self._last = np.full(len(names), np.nan)
        self._changes = np.zeros((len(names), len(_EDGES) + 1))

    def add(self, steps: NDArray[np.int64], values: Array) -> None:
        """Add the numbers of the next steps, float64 [steps, rows]; NaN where a row was not measured."""
        found = logarithms(self.key, values, self.scale)
        buckets = bucket_of(steps)
        self._grow(int(buckets[-1]) + 1)
        for bucket in np.unique(buckets).tolist():
            chosen = found[buckets == bucket]
            self._low[bucket] = np.fmin(self._low[bucket], np.fmin.reduce(chosen, axis=0))
            self._high[bucket] = np.fmax(self._high[bucket], np.fmax.reduce(chosen, axis=0))
        for line in found:
            change = np.abs(line - self._last)
            rows = np.flatnonzero(np.isfinite(change))
            np.add.at(self._changes, (rows, np.searchsorted(_EDGES, change[rows])), 1)
            self._last = np.where(np.isnan(line), self._last, line)

    def _grow(self, count: int) -> None:
        missing = count - len(self._low)
        if missing > 0:
            blank = np.full((missing, len(self.names)), np.nan)
            self._low, self._high = np.concatenate([self._low, blank]), np.concatenate([self._high, blank])

    def bands(self) -> Bands:
        """The bands after all chunks. The noise is the median of the changes from one measurement to the next."""
        total = self._changes.cumsum(axis=1)
        middle = (total < total[:, -1:] / 2).sum(axis=1)
        sizes = np.append(_EDGES, _EDGES[-1])
        # The difference of two numbers with normal noise has a median magnitude of 0.6745 √2 standard deviations.
        noise = sizes[np.minimum(middle, len(_EDGES))] / (0.6745 * np.sqrt(2))
        return Bands(self.key, self.names, self._low, self._high, noise, np.zeros(len(self.names)), self.scale)


def joined(bands: Sequence[Bands]) -> Bands:
    """The bands of several good runs together: the widest, with the distance between their middles."""
    first = bands[0]
    if len(bands) == 1:
        return first
    names = tuple(dict.fromkeys(name for each in bands for name in each.names))
    count = max(len(each.low) for each in bands)
    low = np.full((len(bands), count, len(names)), np.nan)
    high, noise = low.copy(), np.zeros((len(bands), len(names)))
    positions: Mapping[str, int] = {name: i for i, name in enumerate(names)}
    for i, each in enumerate(bands):
        columns = [positions[name] for name in each.names]
        low[i][: len(each.low), columns] = each.low
        high[i][: len(each.low), columns] = each.high
        noise[i, columns] = each.noise
    middles = (low + high) / 2
    apart = np.fmax.reduce(middles) - np.fmin.reduce(middles)
    spread = np.array([_median(column) for column in apart.T])
    return Bands(first.key, names, np.fmin.reduce(low), np.fmax.reduce(high), noise.max(axis=0), spread, first.scale)


def _median(values: Array) -> float:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else 0.0


class Differing(NamedTuple):
    """Rows that differ in one direction.

    Args:
        rows: indices of the rows.
        factors: by which the first run is larger or smaller, at least 1, for each row.
        since: the index of the step from which each row differs.
    """

    rows: Indices
    factors: Array
    since: Indices


def log_ratio(a: Array, b: Array) -> Array:
    """The logarithm to base 2 of the ratio of values of two runs: infinite if one value is 0, and 0 if both are.

    Example:
        >>> log_ratio(np.array([8.0, 0.0, 0.0]), np.array([2.0, 1.0, 0.0])).tolist()
        [2.0, -inf, 0.0]
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(a == b, 0.0, np.log2(a) - np.log2(b))


def larger_and_smaller(a: Array, b: Array) -> tuple[Differing, Differing]:
    """The rows in which the first run is larger, and those in which it is smaller, from some step on.

    A row differs if at nine of ten common steps, from some step on, its ratio is beyond a factor of 1.25 and beyond its
    variation from step to step.

    Args:
        a: values of the first run, float64 [steps, rows], 0 or more; NaN where not measured or not finite.
        b: values of the second run.
    """
    change = np.where((a > 0) & (b > 0), log_ratio(a, b), np.nan)
    threshold = np.fmax(_FACTOR, np.fmax(_variation(a), _variation(b)))
    larger, smaller = (_beyond(sign * change, threshold) for sign in (1, -1))
    return larger, smaller


def _variation(values: Array) -> Array:
    """The median factor between neighbouring steps of each row, as a logarithm to base 2, float64 [rows]; NaN if not known."""
    with np.errstate(divide="ignore", invalid="ignore"):
        change = np.abs(np.diff(np.log2(np.where(values > 0, values, np.nan)), axis=0))
    out = np.full(values.shape[1], np.nan)
    has_any = ~np.isnan(change).all(0) if len(change) else np.zeros(values.shape[1], dtype=np.bool_)
    if has_any.any():
        out[has_any] = np.nanmedian(change[:, has_any], axis=0)
    return out


def _beyond(change: Array, threshold: Array) -> Differing:
    """The rows whose change is above their thresholds from some step on."""
    rows, since = lasting(change > threshold, ~np.isnan(change))
    factors = [2 ** float(np.nanmedian(change[first:, row])) for row, first in zip(rows.tolist(), since.tolist(), strict=True)]
    return Differing(rows, np.array(factors), since)


def lasting(holds: Mask, is_known: Mask) -> tuple[Indices, Indices]:
    """The rows of which a condition holds from some step on, at nine of ten known steps, and the index of that step."""
    held, known = (each[::-1].cumsum(0)[::-1] for each in (holds, is_known))  # from each step on
    lasts = np.maximum(_FEWEST, _SHORTEST * is_known.sum(0))
    return firsts(holds & (known >= np.minimum(lasts, len(holds))) & (held >= _SHARE * known))


def always(holds: Mask, is_known: Mask) -> Indices:
    """The rows of which a condition holds at nine of ten known steps, at the least at one."""
    steps = is_known.sum(0)
    return np.flatnonzero((holds.sum(0) >= np.maximum(_SHARE * steps, 1)) & (steps >= _FEWEST))
