"""The numbers with which a reader judges what is said of learning: the last losses, the learning rate, the size of a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from lightning_hooks.health.evidence import Evidence
from lightning_hooks.health.roles import percent
from lightning_hooks.health.rule import HealthRule
from lightning_hooks.health.steps_before import USUAL, sizes_of_steps
from lightning_hooks.health.usage import rates_of

_ABOUT_LEARNING: Final = frozenset({"loss", "updates"})
"""The families of rules that say whether and how fast a model learns."""
_ALSO: Final = frozenset({"NonFinite", "ExplodingGradient", "VanishingGradient"})
_LAST: Final = 3  # losses that are quoted
_STEPS: Final = 10  # steps whose median is the size of a step


def is_about_learning(rule: str, rules: Mapping[str, HealthRule]) -> bool:
    """Whether what a rule finds is judged by the loss, the learning rate and the size of the steps.

    Args:
        rule: its name.
        rules: the rules of the run by name.
    """
    known = rules.get(rule)
    return known is not None and (known.family in _ABOUT_LEARNING or rule in _ALSO)


def learning_numbers(evidence: Evidence) -> str:
    """The last losses, the learning rate and the share of the weights that a step changes, as far as they are known.

    Args:
        evidence: of the run.

    Example:
        >>> learning_numbers(Evidence())
        ''
    """
    said = (_losses(evidence), _rate(evidence), _size(evidence))
    return "; ".join(each for each in said if each)


def _losses(evidence: Evidence) -> str:
    loss = evidence.loss()
    if loss is None or not loss.values.shape[1]:
        return ""
    measured = np.flatnonzero(_are_measured(evidence))[-_LAST:]
    if not len(measured):
        return ""
    *first, last = [f"{value:.4g}" for value in loss.values[measured, 0].tolist()]
    steps = loss.steps[measured]
    if not first:
        return f"the loss of step {steps[-1]} is {last}"
    return f"the losses of the steps {steps[0]} to {steps[-1]} are {', '.join(first)} and {last}"


def _are_measured(evidence: Evidence) -> np.ndarray:
    """At which steps of the window the loss was measured, bool [window]: a NaN of a loss is a measurement too."""
    loss = evidence.loss()
    key = "loss", "nonfinite"
    counts = evidence.track(*key) if key in evidence.needs else None
    measured = np.zeros(len(evidence.steps), dtype=np.bool_) if loss is None else ~np.isnan(loss.values[:, 0])
    return measured if counts is None else measured | ~np.isnan(counts.values[:, 0])


def _rate(evidence: Evidence) -> str:
    rates = rates_of(evidence.facts_at(evidence.step))
    return f"the learning rate is {max(rates):.3g}" if rates else ""


def _size(evidence: Evidence) -> str:
    shares = sizes_of_steps(evidence)[-_STEPS:]
    if not len(shares):
        return ""
    size = percent(float(np.median(shares)))
    return f"a step changes the median weight by {size} of it, where about {percent(USUAL)} is usual"
