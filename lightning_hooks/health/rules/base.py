"""What rules have in common: the obstacles that several of them meet, and patterns that hold for some steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from lightning_hooks.health.evidence import Evidence
from lightning_hooks.health.roles import NO_STRUCTURE, Array, Mask
from lightning_hooks.health.track import Track

Needs = tuple[tuple[str, str], ...]
Obstacles = tuple[Callable[[Evidence], str | None], ...]
FIRST_STEPS: Final = 3
"""A run that was watched from a later step on says nothing about its start."""


def no_structure(evidence: Evidence) -> str | None:
    """An obstacle of a rule that must know what modules and parameters are for."""
    return NO_STRUCTURE if evidence.structure is None else None


def no_start(evidence: Evidence) -> str | None:
    """An obstacle of a rule on the first measurement of each row."""
    is_late = evidence.first_step >= FIRST_STEPS
    return f"the run was watched from step {evidence.first_step} on, not from its start" if is_late else None


def no_loss(evidence: Evidence) -> str | None:
    """An obstacle of a rule on the loss."""
    return "no row has `loss`" if evidence.loss() is None else None


def no_facts(evidence: Evidence) -> str | None:
    """An obstacle of a rule on modes, optimizers and other facts of a step."""
    return "it is not known how the steps train" if evidence.facts is None else None


def no_optimizer(evidence: Evidence) -> str | None:
    """An obstacle of a rule on optimizers."""
    reason = no_facts(evidence)
    return "no optimizer is known" if evidence.facts is not None and not evidence.facts.optimizers else reason


def one_rank(evidence: Evidence) -> str | None:
    """An obstacle of a rule that compares ranks. If a replica of one rank has differed, the evidence says so."""
    has_apart = evidence.facts is not None and bool(evidence.facts.apart)
    return "there is one rank only" if evidence.ranks < 2 and not has_apart else None


LASTING: Final = 10
"""Updates. Branches that start at zero, LoRA and ReZero leave that state within so many."""
WITNESS: Final = 32
"""The number of losses that a second witness judges: 60 steps, if all of the first 25 are watched and then every fifth."""


def has_new_values(track: Track) -> bool:
    """Whether there are values that the rule has not judged: statistics of units are measured only at every tenth step."""
    return bool(np.isfinite(track.values[track.new]).any())


def held_at_measurements(track: Track, pattern: Mask, least: int) -> Mask:
    """Where a pattern has held at the last `least` measured steps of a row, bool [window, rows].

    A rule with a second witness needs it: the patience of the engine counts the steps at which the witness agrees.
    """
    measured = ~np.isnan(track.values)
    counts = np.zeros(pattern.shape[1], dtype=np.intp)
    holds = np.zeros(pattern.shape, dtype=np.bool_)
    for i in np.flatnonzero(measured.any(axis=1)).tolist():
        counts = np.where(measured[i], np.where(pattern[i], counts + 1, 0), counts)
        holds[i] = measured[i] & (counts >= least)
    return holds


def all_the_same(evidence: Evidence) -> str:
    """The end of a sentence on a fact that a falling loss hides."""
    return "; the loss falls all the same" if evidence.loss_falls() else ""


def updates_before(evidence: Evidence) -> Array:
    """The number of updates before each step, float64 [window], up to a constant.

    Each step is one, unless its update is known to change nothing: what starts at zero waits for a rate above 0.

    Args:
        evidence: of the run, with `abs_max` of `update`.
    """
    updates, update = evidence.steps.astype(np.float64), evidence.track("update", "abs_max")
    if update is not None:
        with np.errstate(invalid="ignore"):
            is_idle = np.any(update.values == 0, axis=1) & ~np.any(update.values > 0, axis=1)
        updates -= np.cumsum(is_idle) - is_idle
    return updates


def held_for_steps(track: Track, pattern: Mask, steps: int, clock: Array | None = None) -> Mask:
    """Where a pattern has held at all measured steps of a row for at least so many steps, bool [window, rows].

    Args:
        track: the statistic.
        pattern: bool [window, rows].
        steps: how many.
        clock: the number of each step, float64 [window], if not all steps of the run count.
    """
    measured = ~np.isnan(track.values)
    since = np.full(pattern.shape[1], np.inf)
    holds = np.zeros(pattern.shape, dtype=np.bool_)
    if not pattern[track.new].any():
        return holds
    for i in np.flatnonzero(measured.any(axis=1)).tolist():
        step = float(track.steps[i] if clock is None else clock[i])
        since = np.where(measured[i], np.where(pattern[i], np.minimum(since, step), np.inf), since)
        holds[i] = measured[i] & (step - since >= steps - 1)
    return holds
