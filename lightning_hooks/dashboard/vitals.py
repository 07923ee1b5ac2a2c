"""Four numbers that say how a healthy run is, each with what it is judged by, and the rows that differ most from the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.dashboard.curves import strip_tags
from lightning_hooks.dashboard.ranges import USUAL_RANGES, UsualRange
from lightning_hooks.dashboard.source import RunSource

_ROWS: Final = 5  # unusual rows that are listed
_STEPS: Final = 64  # the last steps of a table that are read
SPIKE: Final = 5.0
"""The multiple from which on the health rule GradientSpike tells a jump. The rule needs torch, which the page does without."""
_FEWEST: Final = 3  # rows of a table with fewer rows are not compared
_COMPARED: Final = (("update", "ratio"), ("output", "std"), ("grad", "std"), ("param", "std"))
"""The tables whose rows are compared: their statistics do not grow with the number of elements of a row."""


class Vital(NamedTuple):
    """One number.

    Args:
        name: what it is about, and if it is as usual, what it shows.
        state: `fine`, `info` if it is not as usual, or `unknown` if nothing was measured or nobody has judged it.
        text: the number in words.
        judged: what it is judged by.
        source: who published that; empty if it is of this package.
    """

    name: str
    state: str
    text: str
    judged: str
    source: str = ""


def vitals(run: RunSource) -> dict[str, Any]:
    """The `numbers` of a run, and its `rows` that differ most from the others of their table."""
    numbers = [_loss(run), _updates(run), _dead_units(run), _norms(run)]
    return {"numbers": [each._asdict() for each in numbers], "rows": _unusual(run)}


def _loss(run: RunSource) -> Vital:
    checks = run.checks() or {}
    judged = "Learned: at the end the loss is below that of steps 20 to 40 by three times its noise, and not at chance."
    tag = next(iter(strip_tags(run)), "")
    _, values = run.scalar(tag) if "loss" in tag.lower() else (None, np.empty(0))
    values = values[np.isfinite(values)]
    text = str(checks.get("course") or "")
    if not text and len(values):
        text = f"the loss went from {values[0]:.4g} to {np.median(values[-max(len(values) // 10, 1) :]):.4g}"
    has_learned = checks.get("has_learned")
    if has_learned:
        return Vital("The loss fell", "fine", text.replace("the loss went ", "", 1), judged)
    state = "info" if has_learned is False and text else "unknown"
    return Vital("Loss", state, text or "not measured", judged if state == "info" else "No health rule has judged it.")


def _updates(run: RunSource) -> Vital:
    usual = _usual("update", "ratio")
    found = _last(run, "update", "ratio")
    if found is None or usual is None:
        return Vital("Updates", "unknown", "not measured", "A rule with update=ratio measures them.")
    values = found.values[np.isfinite(found.values)]
    if not len(values):
        return Vital("Updates", "unknown", "not measured", "No row has a finite update ratio.")
    inside = int(((values >= usual.low) & (values <= usual.high)).sum())
    text = f"{inside:,} of {len(values):,} rows are in the usual range; the median is {np.median(values):.2g} of the weight"
    judged = f"Usual is {usual.low:g} to {usual.high:g}."
    if inside == len(values):
        return Vital("Updates are usual", "fine", text, judged, usual.source)
    return Vital("Updates", "info", text, judged, usual.source)


def _dead_units(run: RunSource) -> Vital:
    usual = _usual("output", "dead_units")
    found = _last(run, "output", "dead_units")
    if found is None or usual is None or not np.isfinite(found.values).any():
        return Vital("Dead units", "unknown", "not measured", "A rule with output=dead_units measures them.")
    worst = int(np.nanargmax(found.values))
    most = float(found.values[worst])
    text = f"0 % in {len(found.names):,} modules" if most == 0 else f"at most {100 * most:.3g} %, in {found.names[worst]}"
    judged = f"Usual is below {100 * usual.high:g} %."
    if most > usual.high:
        return Vital("Dead units", "info", text, judged, usual.source)
    return Vital("Few dead units" if most else "No dead units", "fine", text, judged, usual.source)


def _norms(run: RunSource) -> Vital:
    """Whether the norm of the whole gradient is steady over the second half of the run."""
    tag = next((each for each in run.scalar_tags() if each.split("/")[-2:] == ["run", "grad_norm"]), None)
    _, values = (None, np.empty(0)) if tag is None else run.scalar(tag)
    late = values[len(values) // 2 :]
    late = late[np.isfinite(late) & (late > 0)]
    if not len(late):
        return Vital("Gradient norm", "unknown", "not measured", "A StatsMonitor with the default rules measures it.")
    most = float(late.max() / np.median(late))
    text = f"the largest norm in the second half is {most:.2g} times the median, {np.median(late):.3g}"
    judged = f"Steady is up to {SPIKE:g} times the median: GradientSpike tells a jump to {SPIKE:g} times the largest before."
    is_steady = most <= SPIKE
    return Vital("The gradient norm is steady" if is_steady else "Gradient norm", "fine" if is_steady else "info", text, judged)


class _Rows(NamedTuple):
    """The medians of the rows of a table over its last steps.

    Args:
        tensor: with the prefix of the monitor.
        names: of the rows.
        values: float64 [rows]; NaN where no value is finite.
        step: the last step.
    """

    tensor: str
    names: tuple[str, ...]
    values: NDArray[np.float64]
    step: int


def _last(run: RunSource, kind: str, stat: str) -> _Rows | None:
    """The last values of the first table of a kind of tensor; None if the run has none."""
    for tensor, each in run.tables():
        if each != stat or tensor.rpartition("/")[2] != kind:
            continue
        steps = run.steps(tensor, stat)
        if not len(steps):
            continue
        values = run.read(tensor, stat, max(len(steps) - _STEPS, 0), len(steps))
        values = np.where(np.isfinite(values), values, np.nan)
        medians = np.full(values.shape[1], np.nan)
        known = ~np.isnan(values).all(0)
        medians[known] = np.nanmedian(values[:, known], axis=0)
        return _Rows(tensor, run.rows(tensor, stat), medians, int(steps[-1]))
    return None


def _unusual(run: RunSource) -> list[dict[str, Any]]:
    """The rows that are farthest from the median row of their table, by the factor; each row once."""
    found = sorted(_factors(run), key=lambda each: -abs(np.log(each["factor"])))
    by_name: dict[str, dict[str, Any]] = {}
    for each in found:
        by_name.setdefault(each["name"], each)
    return [*by_name.values()][:_ROWS]


def _factors(run: RunSource) -> Iterator[dict[str, Any]]:
    for kind, stat in _COMPARED:
        rows = _last(run, kind, stat)
        if rows is None:
            continue
        positive = rows.values > 0
        if positive.sum() < _FEWEST:
            continue
        median = float(np.median(rows.values[positive]))
        for i in np.flatnonzero(positive).tolist():
            value = float(rows.values[i])
            place = {"tensor": rows.tensor, "stat": stat, "name": rows.names[i], "step": rows.step}
            yield {**place, "value": value, "median": median, "factor": value / median, "rows": int(positive.sum())}


def _usual(tensor: str, stat: str) -> UsualRange | None:
    return next((each for each in USUAL_RANGES if each.stat == stat and tensor in each.tensors), None)
