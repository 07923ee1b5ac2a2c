"""What a person should look at first: the global numbers, the rows that changed most, where numbers are not finite."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from lightning_hooks.dashboard.source import RunSource

_AT_ENDS: Final = 32
"""Points at the beginning and at the end of a run whose medians are compared."""
_CHUNK: Final = 256
_MOST: Final = 10
_SIZES: Final = ("norm", "rms", "std", "abs_mean", "abs_max")
"""The statistics by which a change is judged: the first of these that a tensor has."""


def overview(run: RunSource) -> Mapping[str, Any]:
    """Global scalars by name, `changed` rows and `nonfinite` rows of a run."""
    tags = run.scalar_tags()
    return {
        "hooks": [tag for tag in tags if "hooks/" in tag],
        "transforms": [tag for tag in tags if "transform_" in tag],
        "changed": _changed(run),
        "nonfinite": _nonfinite(run),
    }


def _changed(run: RunSource) -> list[dict[str, Any]]:
    """The rows whose size has changed most, by the ratio of medians at the end and at the beginning."""
    tables = run.tables()
    found: list[dict[str, Any]] = []
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
        change[(before > 0) & (after == 0)] = np.inf  # what began at 0 is usual: biases
        for row in np.argsort(-change)[:_MOST].tolist():
            if change[row] > 0:
                name = run.rows(tensor, stat)[row]
                ends_of = {"before": float(before[row]), "after": float(after[row])}
                found.append({"tensor": tensor, "stat": stat, "name": name, "change": float(change[row]), **ends_of})
    return sorted(found, key=lambda each: -each["change"])[:_MOST]


def _median(values: Any) -> Any:
    """The median of each column over what is finite; NaN where nothing is."""
    values = np.where(np.isfinite(values), values.astype(np.float64), np.nan)
    out = np.full(values.shape[1], np.nan)
    there = ~np.isnan(values).all(0)
    if there.any():
        out[there] = np.nanmedian(values[:, there], axis=0)
    return out


def _nonfinite(run: RunSource) -> list[dict[str, Any]]:
    """The rows with NaN or Inf, earliest first: since which step, at how many steps, at most how many elements."""
    found: list[dict[str, Any]] = []
    for tensor, stat in run.tables():
        if stat != "nonfinite":
            continue
        steps, names = run.steps(tensor, stat), run.rows(tensor, stat)
        first = np.full(len(names), -1, dtype=np.int64)
        times, most = np.zeros(len(names), dtype=np.int64), np.zeros(len(names))
        for at in range(0, len(steps), _CHUNK):
            values = run.read(tensor, stat, at, at + _CHUNK)
            is_there = values > 0
            if is_there.any():
                first = np.where((first < 0) & is_there.any(0), steps[at + is_there.argmax(0)], first)
                times += is_there.sum(0)
                most = np.fmax(most, np.fmax.reduce(values, axis=0))
        for row in np.flatnonzero(times).tolist():
            counts = {"steps": int(times[row]), "most": float(most[row])}
            found.append({"tensor": tensor, "name": names[row], "first": int(first[row]), **counts})
    return sorted(found, key=lambda each: each["first"])
