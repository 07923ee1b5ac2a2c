"""Advice that fits a model: nothing that it has already."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from lightning_hooks.comparing.exact import columns_of
from lightning_hooks.health.evidence import Evidence
from lightning_hooks.health.usage import groups_of, has_scaler


def fitting(next_steps: Sequence[str], evidence: Evidence) -> tuple[str, ...]:
    """The steps to try without those that ask for what the model has; all of them if none would be left.

    Args:
        next_steps: what a rule or a cause says.
        evidence: of the run.

    Example:
        >>> fitting(("Put a norm between the layers.", "Lower the rate."), Evidence())
        ('Put a norm between the layers.', 'Lower the rate.')
    """
    kept = tuple(step for step in next_steps if not any(asks.search(step) and has(evidence) for asks, has in _HELD))
    return kept or tuple(next_steps)


def _has_norm(evidence: Evidence) -> bool:
    return evidence.structure is not None and any(module.role == "norm" for module in evidence.structure.modules)


def _has_scaler(evidence: Evidence) -> bool:
    return has_scaler(evidence.facts)


def _clips(evidence: Evidence) -> bool:
    """Whether the optimizer gets a smaller gradient than the backward pass gave, at one of the last steps."""
    keys = ("grad", "norm"), ("final_grad", "norm")
    if not set(keys) <= set(evidence.needs):
        return False
    before, after = (evidence.track(*key) for key in keys)
    if before is None or after is None:
        return False
    columns = columns_of(after.names, before.names)
    with np.errstate(invalid="ignore"):
        return bool((after.values[:, columns[columns >= 0]] < 0.99 * before.values[:, columns >= 0])[-_RECENT:].any())


def _largest_decay(evidence: Evidence) -> float:
    """The largest weight decay of an optimizer at the last step; NaN if it is not known."""
    return max((group.weight_decay or 0.0 for group in groups_of(evidence.facts)), default=np.nan)


def _has_usual_decay(evidence: Evidence) -> bool:
    return _largest_decay(evidence) <= _USUAL_DECAY


def _has_unusual_decay(evidence: Evidence) -> bool:
    return _largest_decay(evidence) > _USUAL_DECAY


def _has_no_embedding(evidence: Evidence) -> bool:
    return evidence.structure is not None and all(module.role != "embedding" for module in evidence.structure.modules)


def _has_gradients(evidence: Evidence) -> bool:
    """Whether a gradient is there, be it 0, at the last step."""
    gradients = evidence.track("grad", "abs_max") if ("grad", "abs_max") in evidence.needs else None
    return gradients is not None and len(gradients.values) > 0 and bool(np.isfinite(gradients.values[-1]).any())


def _has_nothing_recurrent(evidence: Evidence) -> bool:
    structure = evidence.structure
    return structure is not None and all(module.role not in ("recurrent", "other") for module in structure.modules)


_RECENT: Final = 50  # steps
_USUAL_DECAY: Final = 0.1
_HELD: Final[tuple[tuple[re.Pattern[str], Callable[[Evidence], bool]], ...]] = (
    (re.compile(r"^Put a norm"), _has_norm),
    (re.compile(r"^Use a loss scaler"), _has_scaler),
    (re.compile(r"^Clip the norm of the gradient"), _clips),
    (re.compile(r"^(Recurrent weights|If it is the recurrent weight)"), _has_nothing_recurrent),
    (re.compile(r"^An embedding, and a head that shares its weight"), _has_no_embedding),
    (re.compile(r"^Lower weight_decay: "), _has_usual_decay),
    (re.compile(r"^Where weight_decay is usual"), _has_unusual_decay),
    (re.compile(r"^If no parameter has a gradient"), _has_gradients),
)
"""What a step to try asks for, and whether a run has it."""
