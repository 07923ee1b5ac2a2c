"""Collects what a person should look at first: global numbers, the rows that changed most, rows with NaN or Inf."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from lightning_hooks.dashboard.modes import mode_changes
from lightning_hooks.dashboard.source import RunSource

_AT_ENDS: Final = 32
"""The steps at the beginning and at the end of a run whose medians are compared."""
_CHUNK: Final = 256  # steps that are held in memory at a time
_MOST: Final = 10  # the most rows of a list
_SIZES: Final = ("norm", "rms", "std", "abs_mean", "abs_max")
"""The statistics by which a change is judged; of each tensor the first one that it has."""


def overview(run: RunSource) -> Mapping[str, Any]:
    """The tags of global scalars (`hooks`) and of reports of `transforms`, `changed` and `nonfinite` rows, and `modes`."""
    tags = run.scalar_tags()
    return {
        "hooks": [tag for tag in tags if "hooks/" in tag],
        "transforms": [tag for tag in tags if "transform_" in tag],
        "changed": _changed(run),
        "nonfinite": _nonfinite(run),
        "modes": _modes(run),
    }


def _modes(run: RunSource) -> list[dict[str, Any]]:
    # Every monitor notes the facts of the same model, so those of one monitor are enough.
    prefixes = dict.fromkeys(["", *(str(each.get("prefix", "")) for each in run.row_indices())])
    return mode_changes(next(filter(None, map(run.saved_facts, prefixes)), []))


def _changed(run: RunSource) -> list[dict[str, Any]]:
    """The rows whose size changed most, by the ratio of the medians at the end and at the beginning of the run."""
    tables = run.tables()
    rows: list[dict[str, Any]] = []
    for tensor in dict.fromkeys(tensor for tensor, _ in tables):
        stat = next((stat for stat in _SIZES if (tensor, stat) in tables), None)
        if stat is None:
            continue
        steps = run.steps(tensor, stat)
        count = min(_AT_ENDS, len(steps) // 2)
        if not count:
            continue
        ends = run.read(tensor, stat, 0, count), run.read(tensor, stat, len(steps) - count, len(steps))
        before, after = (_median(values) for values in ends)
        with np.errstate(divide="ignore", invalid="ignore"):
            change = np.abs(np.log(after / before))
        change[~np.isfinite(change)] = -1
        # A row that shrank to 0 changed most. A row that began at 0 is not listed, since biases usually do.
        change[(before > 0) & (after == 0)] = np.inf
        for row in np.argsort(-change)[:_MOST].tolist():
            if change[row] > 0:
                name = run.rows(tensor, stat)[row]
                ends_of = {"before": float(before[row]), "after": float(after[row])}
                rows.append({"tensor": tensor, "stat": stat, "name": name, "change": float(change[row]), **ends_of})
    return sorted(rows, key=lambda each: -each["change"])[:_MOST]


def _median(values: Any) -> Any:
    """The median of the finite values of each column; NaN if a column has no finite value."""
    values = np.where(np.isfinite(values), values.astype(np.float64), np.nan)
    out = np.full(values.shape[1], np.nan)
    has_finite = ~np.isnan(values).all(0)
    if has_finite.any():
        out[has_finite] = np.nanmedian(values[:, has_finite], axis=0)
    return out


def _nonfinite(run: RunSource) -> list[dict[str, Any]]:
    """The rows with NaN or Inf, earliest first: the `first` step, the number of `steps`, and the `most` elements at a step."""
    rows: list[dict[str, Any]] = []
    for tensor, stat in run.tables():
        if stat != "nonfinite":
            continue
        steps, names = run.steps(tensor, stat), run.rows(tensor, stat)
        first = np.full(len(names), -1, dtype=np.int64)
        times, most = np.zeros(len(names), dtype=np.int64), np.zeros(len(names))
        for at in range(0, len(steps), _CHUNK):
            values = run.read(tensor, stat, at, at + _CHUNK)
            has_nonfinite = values > 0
            if has_nonfinite.any():
                first = np.where((first < 0) & has_nonfinite.any(0), steps[at + has_nonfinite.argmax(0)], first)
                times += has_nonfinite.sum(0)
                most = np.fmax(most, np.fmax.reduce(values, axis=0))
        for row in np.flatnonzero(times).tolist():
            counts = {"steps": int(times[row]), "most": float(most[row])}
            rows.append({"tensor": tensor, "name": names[row], "first": int(first[row]), **counts})
    return sorted(rows, key=lambda each: each["first"])
