"""Losses that are exactly 0 in between, while the others are as large as at first."""

from __future__ import annotations

from typing import Final

import numpy as np

from lightning_hooks.health.evidence import Evidence

_LEAST: Final = 3
"""The losses other than 0 that are known before one of 0."""
_RECENT: Final = 10
"""The losses other than 0 whose median is the level before one of 0."""
_LEFT: Final = 0.5
"""The share of the first losses that is left of a model which cannot have all samples right."""
_COMES_BACK: Final = 0.25
"""The share of the first losses to which a later loss comes back, so that not all is learned."""


def zeros_between(evidence: Evidence) -> tuple[int, float] | None:
    """How many losses are exactly 0 where those before are at least half of the first ones, and the level of the first ones.

    A loss of margins is 0 once all samples of a batch are right, which is no fault: its other losses are small by then. Such
    a loss is followed by one of another size, since one that stays at 0 has another reason.

    Args:
        evidence: of the run, from its first step on.

    Returns:
        None if the first steps are not known.
    """
    loss = evidence.loss()
    if loss is None or not loss.values.shape[1] or not evidence.holds_start:
        return None
    values = loss.values[np.isfinite(loss.values[:, 0]), 0]
    is_other = values != 0
    others = values[is_other]
    if len(others) < _LEAST or not (others > 0).all():
        return None
    first = float(np.median(others[:5]))
    positions = np.cumsum(is_other)  # of losses other than 0 up to each
    count = 0
    for at in np.flatnonzero(~is_other).tolist():
        before, after = others[max(0, positions[at] - _RECENT) : positions[at]], others[positions[at] :]
        is_usual = len(before) >= _LEAST and float(np.median(before)) >= _LEFT * first
        count += bool(is_usual and len(after) and after.max() >= _COMES_BACK * first)
    return count, first
