"""Says in one sentence how a statistic differs between two runs: which rows, by what factor, and since which step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from lightning_hooks.comparing.bands import always, larger_and_smaller, lasting
from lightning_hooks.comparing.exact import Array, Indices, common_rows
from lightning_hooks.dashboard.source import CHUNK, RunSource, common_points
from lightning_hooks.dashboard.tree import tree

POSITIVE: Final = {
    "norm": "norms",
    "rms": "rms values",
    "std": "standard deviations",
    "abs_mean": "mean magnitudes",
    "abs_max": "largest magnitudes",
    "ratio": "ratios",
    "count": "counts",
}
"""The statistics that are compared by their ratio, as text: they are sizes, and their ratio has a meaning."""
_STEPS: Final = 512  # the most steps that are compared


def sentence(
    names: Sequence[str],
    steps: Sequence[int],
    a: Array,
    b: Array,
    quantity: str,
    runs: tuple[str, str],
    total: int | None = None,
) -> str:
    """How the values of two runs differ.

    Args:
        names: the rows that both runs have.
        steps: the compared steps, ascending.
        a: values of the first run, float64 [steps, rows], 0 or more; NaN where not measured or not finite.
        b: values of the second run.
        quantity: what is compared, in the plural.
        runs: the names of the runs.
        total: the number of steps that both runs have, if not all of them are compared.

    Example:
        >>> ones = np.ones((20, 2))
        >>> sentence(["net.a", "net.b"], range(20), 100 * ones, ones, "update ratios", ("a", "b"))
        'a against b: update ratios are 100 times larger in both rows of net, from step 0.'
        >>> sentence(["net.a"], range(20), 1.1 * ones[:, :1], ones[:, :1], "norms", ("a", "b"))
        'a against b: norms differ not by more than a factor of 1.25 or their variation from step to step.'
    """
    head = f"{runs[0]} against {runs[1]}: "
    only = [_only(names, a, b, runs[0]), _only(names, b, a, runs[1])]
    absent = [_absent(names, steps, a, b, runs[0]), _absent(names, steps, b, a, runs[1])]
    if np.array_equal(a, b, equal_nan=True):
        return f"{head}{quantity} are equal in {_all(len(names))}, at {_every(len(steps), total or len(steps))}."
    if not ((a > 0) & (b > 0)).any() and not any(only + absent):
        return f"{head}{quantity} are above 0 at no step and row that both have, so they are not compared."
    parts = [
        f"{_times(found.factors)} {word} in {where(found.rows.tolist(), names)}, {_since(found.since, steps)}"
        for found, word in zip(larger_and_smaller(a, b), ("larger", "smaller"), strict=True)
        if len(found.rows)
    ]
    parts += [f"exactly 0 in {each}" for each in only if each]
    parts += [f"without a finite value in {each}" for each in absent if each]
    if parts:
        return f"{head}{quantity} are {'; '.join(parts)}."
    none = "not" if len(names) == 1 else f"in none of the {len(names):,} rows that both have"
    return f"{head}{quantity} differ {none} by more than a factor of 1.25 or their variation from step to step."


def _absent(names: Sequence[str], steps: Sequence[int], values: Array, others: Array, run: str) -> str:
    """The rows without a finite value in one run alone, from some step on; empty if there are none."""
    rows, since = lasting(np.isnan(values) & ~np.isnan(others), ~np.isnan(others))
    return f"{where(rows.tolist(), names)} of {run} alone, {_since(since, steps)}" if len(rows) else ""


def _only(names: Sequence[str], values: Array, others: Array, run: str) -> str:
    """The rows that are 0 in one run alone, at nine of ten steps; empty if there are none."""
    rows = always((values == 0) & (others > 0), ~np.isnan(values) & ~np.isnan(others))
    return f"{where(rows.tolist(), names)} of {run} alone" if len(rows) else ""


def where(rows: Sequence[int], names: Sequence[str]) -> str:
    """Rows in words: by the smallest part of the tree that holds all of them.

    Example:
        >>> names = ["net.0.w", "net.1.w", "net.1.b", "head.w"]
        >>> where([1, 2], names), where([0, 1], names), where([0, 1, 2, 3], names), where([3], names), where([0, 3], names)
        ('both rows of net.1', '2 of 3 rows of net', 'all 4 rows', 'head.w', '2 of 4 rows')
    """
    if len(rows) == 1:
        return names[rows[0]]
    chosen = {*rows}
    groups = [node for node in tree(names, {}) if node.row is None and chosen.issubset(node.leaves)]
    if len(rows) == len(names) and not any(len(group.leaves) == len(names) for group in groups):
        return _all(len(names))
    group = min(groups, key=lambda node: len(node.leaves), default=None)
    of, total = ("", len(names)) if group is None else (f" of {group.name}", len(group.leaves))
    return f"{_all(total)}{of}" if len(rows) == total else f"{len(rows):,} of {total:,} rows{of}"


def _all(count: int) -> str:
    return {1: "the one row", 2: "both rows"}.get(count, f"all {count:,} rows")


def _every(count: int, total: int) -> str:
    if count < total:
        return f"the {count:,} of {total:,} common steps that were compared"
    return {1: "the one common step", 2: "both common steps"}.get(count, f"all {count:,} common steps")


def _times(factors: Array) -> str:
    """Factors as text: one number if they are within a factor of two, otherwise the least and the greatest."""
    low, high = float(factors.min()), float(factors.max())
    return f"{_short(float(np.median(factors)))} times" if high < 2 * low else f"{_short(low)} to {_short(high)} times"


def _short(factor: float) -> str:
    return f"{float(f'{factor:.2g}'):,.10g}" if factor < 1e6 else f"{factor:.1e}"


def _since(since: Indices, steps: Sequence[int]) -> str:
    first, last = steps[int(since.min())], steps[int(since.max())]
    return f"from step {first:,}" if first == last else f"from steps {first:,} to {last:,} on"


def comparison(run: RunSource, other: RunSource, tensor: str, stat: str, runs: tuple[str, str]) -> dict[str, Any]:
    """The answer to `comparison` (see `api.py`): `text`, None if the statistic is not one that ratios compare.

    Args:
        run: the first run.
        other: the second run.
        tensor: of the table that both have.
        stat: of the table.
        runs: the names of the runs.
    """
    if stat not in POSITIVE:
        return {"text": None}
    quantity = f"{tensor} {POSITIVE[stat]}"
    rows = common_rows(run.rows(tensor, stat), other.rows(tensor, stat))
    common = common_points(run, other, tensor, stat)
    if not rows.names or not len(common.steps):
        missing = "row" if not rows.names else "step"
        return {"text": f"{runs[0]} against {runs[1]}: {quantity} have no {missing} in common."}
    total = len(common.steps)
    chosen = np.unique(np.linspace(0, total - 1, min(total, _STEPS)).round().astype(np.intp))
    a = _values(run, tensor, stat, common.first[chosen], rows.first)
    b = _values(other, tensor, stat, common.second[chosen], rows.second)
    return {"text": sentence(rows.names, common.steps[chosen].tolist(), a, b, quantity, runs, total)}


def _values(run: RunSource, tensor: str, stat: str, points: Indices, rows: Indices) -> Array:
    """The values at ascending points of a table, float64 [points, rows]; NaN for what is not finite."""
    values = np.full((len(points), len(rows)), np.nan)
    for at in range(int(points[0]), int(points[-1]) + 1, CHUNK):
        inside = np.flatnonzero((points >= at) & (points < at + CHUNK))
        if len(inside):
            values[inside] = run.read(tensor, stat, at, int(points[inside[-1]]) + 1)[points[inside] - at][:, rows]
    values[~np.isfinite(values)] = np.nan
    return values
