"""Collects what a person should look at besides findings: global numbers, reports of transforms, rows with NaN or Inf."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from lightning_hooks.dashboard.explanations import EXPLANATIONS
from lightning_hooks.dashboard.modes import mode_changes
from lightning_hooks.dashboard.run_head import run_head
from lightning_hooks.dashboard.source import CHUNK, RunSource

_BEFORE: Final = "run/grad_norm"
_AFTER: Final = "run/final_grad_norm"
_EQUAL: Final = 1e-6
"""The relative difference up to which two norms are those of the same gradient, which nothing has clipped."""


def overview(run: RunSource) -> Mapping[str, Any]:
    """The tags of global scalars (`run`) and of reports of `transforms`, `nonfinite` rows, `modes`, and the `head`.

    `last` has the last value of a scalar, as `step` and `value`, where that of another step than the last is to be shown.
    """
    tags = run.scalar_tags()
    shown = [tag for tag in tags if _is_global(tag)]
    unclipped, last = _clipping(run, shown)
    return {
        "run": [tag for tag in shown if tag not in unclipped],
        "last": last,
        "transforms": [tag for tag in tags if "transform_" in tag],
        "nonfinite": _nonfinite(run),
        "modes": _modes(run),
        "head": run_head(run),
    }


def _is_global(tag: str) -> bool:
    """Whether a tag is that of one of our global numbers, whatever its prefix and stage are."""
    folder, _, name = tag.rpartition("/")
    return folder.endswith("run") and f"run/{name}" in EXPLANATIONS


def _clipping(run: RunSource, tags: Sequence[str]) -> tuple[set[str], dict[str, dict[str, float]]]:
    """The norms after clipping that never differ from those before, and of all others the last values at one step.

    The norm after clipping may be measured at fewer steps than the norm before, so that their last values do not compare.
    """
    unclipped, last = set[str](), dict[str, dict[str, float]]()
    for after in tags:
        before = after.removesuffix(_AFTER) + _BEFORE
        if not after.endswith(_AFTER) or before not in tags:
            continue
        (steps, norms), (steps_after, norms_after) = run.scalar(before), run.scalar(after)
        common, at, at_after = np.intersect1d(steps, steps_after, return_indices=True)
        if not len(common):
            continue
        if np.allclose(norms[at], norms_after[at_after], rtol=_EQUAL, atol=0.0, equal_nan=True):
            unclipped.add(after)
            continue
        for tag, value in ((before, norms[at[-1]]), (after, norms_after[at_after[-1]])):
            last[tag] = {"step": int(common[-1]), "value": float(value)}
    return unclipped, last


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
