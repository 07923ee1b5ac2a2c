"""Says whether the row or fact by which a fault is visible has changed, beside the same training without the fault."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from benchmarks.trainings.verdicts import matches
from lightning_hooks.records.step_view import StepView

LEAST_CHANGE: Final = 0.1
"""A statistic has changed if it differs by more than this share of the larger of the two."""


def changed_at(
    views: Iterable[StepView], without: Sequence[StepView], shows: tuple[str, str], rows: Sequence[str] = (), onset: int = 0
) -> int | None:
    """The first step from the onset on at which the row or fact differs; None if it never does.

    Args:
        views: of the faulty training.
        without: those of the training without the fault, with the same first weights and batches.
        shows: the tensor and the statistic, or "fact" and a field of `StepFacts`.
        rows: globs of the names of rows at which the fault is; empty for all.
        onset: the step at which the fault begins.
    """
    others = {view.step: view for view in without}
    for view in views:
        if view.step >= onset and view.step in others and _differ(view, others[view.step], shows, rows):
            return view.step
    return None


def _differ(view: StepView, other: StepView, shows: tuple[str, str], rows: Sequence[str]) -> bool:
    tensor, stat = shows
    if tensor == "fact":
        return bool(getattr(view.facts, stat, None) != getattr(other.facts, stat, None))
    here, there = _numbers(view, tensor, stat, rows), _numbers(other, tensor, stat, rows)
    return here.keys() != there.keys() or any(not _are_near(here[row], there[row]) for row in here)


def _numbers(view: StepView, tensor: str, stat: str, rows: Sequence[str]) -> Mapping[tuple[str, str], float]:
    """The measured values of the rows of a tensor, and of its elements if it is a tuple."""
    is_placed = matches(rows) if rows else lambda name: True
    tensors = [each for each in dict.fromkeys(view.rows.tensors) if each == tensor or each.startswith(f"{tensor}[")]
    return {
        (each, name): float(value)
        for each in tensors
        for series in [view.stat(each, stat)]
        for name, value, is_measured in zip(series.names, series.values, series.measured, strict=True)
        if is_measured and is_placed(name)
    }


def _are_near(first: float, second: float) -> bool:
    if not (np.isfinite(first) and np.isfinite(second)):
        return str(first) == str(second)
    return abs(first - second) <= LEAST_CHANGE * max(abs(first), abs(second))
