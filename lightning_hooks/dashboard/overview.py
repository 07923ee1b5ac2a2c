"""Collects what a person should look at besides findings: global numbers, reports of transforms, rows with NaN or Inf."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from lightning_hooks.dashboard.explanations import EXPLANATIONS
from lightning_hooks.dashboard.modes import mode_changes
from lightning_hooks.dashboard.run_head import run_head
from lightning_hooks.dashboard.source import CHUNK, RunSource


def overview(run: RunSource) -> Mapping[str, Any]:
    """The tags of global scalars (`run`) and of reports of `transforms`, `nonfinite` rows, `modes`, and the `head`."""
    tags = run.scalar_tags()
    return {
        "run": [tag for tag in tags if _is_global(tag)],
        "transforms": [tag for tag in tags if "transform_" in tag],
        "nonfinite": _nonfinite(run),
        "modes": _modes(run),
        "head": run_head(run),
    }


def _is_global(tag: str) -> bool:
    """Whether a tag is that of one of our global numbers, whatever its prefix and stage are."""
    folder, _, name = tag.rpartition("/")
    return folder.endswith("run") and f"run/{name}" in EXPLANATIONS


def _modes(run: RunSource) -> list[dict[str, Any]]:
    # Every monitor notes the facts of the same model, so those of one monitor are enough.
    prefixes = dict.fromkeys(["", *(str(each.get("prefix", "")) for each in run.row_indices())])
    return mode_changes(next(filter(None, map(run.saved_facts, prefixes)), []))


def _nonfinite(run: RunSource) -> list[dict[str, Any]]:
    """The rows with NaN or Inf, earliest first: the `first` step, the number of `steps`, and the `most` elements at a step."""
    rows: list[dict[str, Any]] = []
    for tensor, stat in run.tables():
        if stat != "nonfinite":
            continue
        steps, names = run.steps(tensor, stat), run.rows(tensor, stat)
        first = np.full(len(names), -1, dtype=np.int64)
        times, most = np.zeros(len(names), dtype=np.int64), np.zeros(len(names))
        for at in range(0, len(steps), CHUNK):
            values = run.read(tensor, stat, at, at + CHUNK)
            has_nonfinite = values > 0
            if has_nonfinite.any():
                first = np.where((first < 0) & has_nonfinite.any(0), steps[at + has_nonfinite.argmax(0)], first)
                times += has_nonfinite.sum(0)
                most = np.fmax(most, np.fmax.reduce(values, axis=0))
        for row in np.flatnonzero(times).tolist():
            counts = {"steps": int(times[row]), "most": float(most[row])}
            rows.append({"tensor": tensor, "name": names[row], "first": int(first[row]), **counts})
    return sorted(rows, key=lambda each: each["first"])
