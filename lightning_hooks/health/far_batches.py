"""Batches whose numbers are far larger than those of all other batches, as the first layer shows them at each step."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from lightning_hooks.health.evidence import Evidence
from lightning_hooks.health.layers import layers_of
from lightning_hooks.health.roles import roles_of
from lightning_hooks.health.steps_before import LASTING, track_of

_TIMES: Final = 30.0
"""The multiple of the largest output before to which that of the first layer must jump."""
_LEAST: Final = 16
"""The smallest number of outputs that are known before."""
_MOVED: Final = 0.5
"""The share of itself by which the weight of the first layer may have changed in the step before."""


class _Jump(NamedTuple):
    """A jump of the first layer's output: the layer, the step, the largest element, and the largest one before."""

    layer: str
    step: int
    size: float
    before: float


def _jump(evidence: Evidence, begin: int) -> _Jump | None:
    roles, track = roles_of(evidence), track_of(evidence, "output", "abs_max")
    ratio = track_of(evidence, "update", "ratio")
    if roles is None or track is None or ratio is None:
        return None
    first = layers_of(evidence, roles).first
    # The weight of a layer with one input is a column of numbers, which other rules take for a bias.
    weights = [name for name in ratio.names if name.startswith(f"{first}.") and not name.endswith("bias")]
    if first not in track.names or not weights:
        return None
    sizes = track.values[:, track.names.index(first)]
    moves = ratio.values[:, [ratio.names.index(name) for name in weights]].max(axis=1)
    for at in np.flatnonzero((track.steps >= begin - LASTING) & (track.steps <= begin)).tolist():
        before = sizes[:at][np.isfinite(sizes[:at])]
        if (
            np.isfinite(sizes[at])
            and len(before) >= _LEAST
            and sizes[at] > _TIMES * before.max() > 0
            and not moves[at - 1] > _MOVED
        ):
            return _Jump(first, int(track.steps[at]), float(sizes[at]), float(before.max()))
    return None


def has_far_batch(evidence: Evidence, begin: int) -> bool:
    """Whether the output of the first layer jumped just before the findings, although its weight had hardly changed.

    Args:
        evidence: of the run.
        begin: the first step of the findings.
    """
    return _jump(evidence, begin) is not None


def said_of_far_batch(evidence: Evidence, begin: int) -> str:
    """A sentence on the batch whose numbers are far larger than those of all before; empty if there is none.

    Args:
        evidence: of the run.
        begin: the first step of the findings.
    """
    jump = _jump(evidence, begin)
    if jump is None:
        return ""
    return (
        f" The largest output of {jump.layer} is {jump.size:.3g} at step {jump.step}, and had not been above {jump.before:.3g}."
    )
