"""What the steps before findings show: that losses grew, that steps were far too large or small, what became of the rate."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from lightning_hooks.health.evidence import LOSS, Evidence
from lightning_hooks.health.harm import jump_of
from lightning_hooks.health.roles import Array, medians, percent, roles_of
from lightning_hooks.health.rules.between import MovesBetweenSteps
from lightning_hooks.health.track import Track
from lightning_hooks.health.usage import rates_of

FIRST_STEPS: Final = 25
"""The steps of the start that are compared with later ones."""
FAR: Final = 0.5
"""A step that changes a weight by this share of it has gone too far; healthy trainings stay below a tenth after their start."""
_MULTIPLE: Final = 10.0
"""The share from which on it is told as a multiple."""
LARGE: Final = 0.1
"""The share of a weight with which TheDeepChecker's band of updates ends."""
LASTING: Final = 10
"""The number of steps: so many large ones in a row have gone too far, and a rate that rose so many ago is still to blame."""
RAISED: Final = 5.0
"""The multiple to which a learning rate must rise from one step to the next; schedules of healthy trainings rise by and by."""
SMALL: Final = 1e-4
"""The share of a weight below which cs231n and TheDeepChecker call a step small."""
USUAL: Final = 1e-3
"""The share of a weight that a step usually changes."""
_SMALLEST_RATE: Final = 1e-6
_LARGEST_RATE: Final = 10.0
"""Learning rates that are in use: fine-tuning begins at 1e-6, and large batches with LARS end at some units."""
_MOST_STEPS: Final = 0.9
"""The share of steps from which on weights are moved at most steps."""
_FELL: Final = 10.0
"""A rate that is less than a tenth of the largest one has fallen; less than a hundredth teaches hardly anything any more."""
_MOST_HIGH: Final = 0.25
"""The largest share of steps with a high rate of a training whose rate fell too early; of a cosine it is about 0.8."""
_GROWN: Final = 10.0
"""A loss or gradient has grown if it is this multiple of its level before."""
_THROUGH_TIME: Final = 10.0
"""The multiple of the largest gradient of the other layers above which that of a recurrent weight has exploded."""
BEFORE: Final = 30
"""The number of steps before the first finding in which a divergence is looked for."""


def has_diverged(evidence: Evidence, begin: int) -> bool:
    """Whether a training diverged before its findings began.

    The loss or the whole gradient had grown to ten times its level over more than one step, or a step had changed the median
    weight by half of it. An operation without a finite result, such as the logarithm of 0, comes after ordinary steps.

    Args:
        evidence: of the run.
        begin: the first step of the findings.
    """
    shares = _shares(evidence, begin)
    return bool((shares[-LASTING:, 1] > FAR).any()) or _growth(evidence, begin) != ""


def divergence(evidence: Evidence, begin: int) -> str:
    """What grew before the findings began, how large the steps were, and at which learning rate; empty if nothing is known.

    Args:
        evidence: of the run.
        begin: the first step of the findings.
    """
    return _growth(evidence, begin) + _sizes(evidence, _shares(evidence, begin), begin)


def step_sizes(evidence: Evidence, begin: int) -> str:
    """How large the steps are from the beginning of the findings on, and at which learning rate.

    Args:
        evidence: of the run.
        begin: the first step of the findings.
    """
    shares = _shares(evidence, evidence.step + 1, len(evidence.steps))
    return _sizes(evidence, shares[shares[:, 0] >= begin], begin)


def _sizes(evidence: Evidence, shares: Array, begin: int) -> str:
    """The first large step of some, or the learning rate at the step `begin`."""
    large = shares[shares[:, 1] > LARGE]
    # The first of the large steps tells the rate; later ones are what it has led to.
    step, share = large[0].tolist() if len(large) else (begin, 0.0)
    rate = max(rates_of(evidence.facts_at(int(step))), default=0.0)
    if len(large):
        size = f"{percent(share)} of it" if share < _MULTIPLE else f"{share:.2g} times its size"
        return f" Step {int(step)} changed the median weight by {size}; {_usual(USUAL / share, rate)}."
    return f" The learning rate is {rate:.3g}." if rate > 0 else ""


def _growth(evidence: Evidence, begin: int) -> str:
    """Which series had grown before a step, with its numbers; empty if none had."""
    for name, key in (("loss", LOSS), ("norm of the gradient", ("", "run/grad_norm"))):
        track = track_of(evidence, *key)
        if track is None or not track.values.shape[1]:
            continue
        is_known = np.isfinite(track.values[:, 0]) & (track.steps < begin)
        values, steps = track.values[is_known, 0][-BEFORE:], track.steps[is_known][-BEFORE:]
        if len(values) < 3:
            continue
        sizes = np.abs(values)
        level = float(np.median(sizes[: max(len(sizes) // 2, 1)]))
        if sizes[-1] > _GROWN * level > 0 and sizes[-1] > sizes[-2] > level:
            # The first number of the series may be an outlier, so quote the first one that is not above the level.
            low = int(np.flatnonzero(sizes <= level)[0])
            return f" The {name} grew from {values[low]:.3g} at step {steps[low]} to {values[-1]:.3g} at step {steps[-1]}."
    return ""


def _shares(evidence: Evidence, begin: int, count: int = BEFORE) -> Array:
    """The last steps before a step, and by which share of itself each changed the median weight, float64 [steps, 2]."""
    track, roles = track_of(evidence, "update", "ratio"), roles_of(evidence)
    if track is None:
        return np.empty((0, 2))
    weights = np.ones(len(track.names), dtype=np.bool_) if roles is None else roles.are_weights(track.names)
    middle = medians(np.where(weights & (track.values > 0) & np.isfinite(track.values), track.values, np.nan))
    is_known = np.isfinite(middle) & (track.steps < begin)
    return np.stack([track.steps[is_known].astype(np.float64), middle[is_known]], axis=1)[-count:]


def sizes_of_steps(evidence: Evidence) -> Array:
    """By which share of itself each step of the window changed the median weight, float64 [steps]; steps of 0 are left out."""
    sizes: Array = _shares(evidence, evidence.step + 1, len(evidence.steps))[:, 1]
    return sizes


def has_stepped_too_far(evidence: Evidence, begin: int) -> bool:
    """Whether an early step has changed most weights by half of them, or ten in a row before the findings by a tenth.

    Args:
        evidence: of the run.
        begin: the first step of the findings.
    """
    ratio = track_of(evidence, "update", "ratio")
    ratio, roles = None if ratio is None else evidence.of_rows(ratio), roles_of(evidence)
    if ratio is None or not len(ratio.values):
        return False
    # A bias that starts at 0 changes by more than itself in the first steps of any training.
    weights = np.ones(len(ratio.names), dtype=np.bool_) if roles is None else roles.are_weights(ratio.names)
    shares = np.where(np.isfinite(ratio.values), ratio.values, 0.0)[:, weights if weights.any() else slice(None)]
    if evidence.holds_start and np.median(shares[:FIRST_STEPS].max(axis=0)) > FAR:
        return True
    large = np.median(shares[ratio.steps <= begin], axis=1) > LARGE
    return bool(len(large) >= LASTING and sliding_window_view(large, LASTING).all(axis=1).any())


def has_exploded_through_time(evidence: Evidence, begin: int) -> bool:
    """Whether the gradient of a recurrent weight was far above all others before any step changed the weights much.

    Args:
        evidence: of the run.
        begin: the first step of the findings.
    """
    return through_time(evidence, begin) != ""


def through_time(evidence: Evidence, begin: int) -> str:
    """How far the gradient of a recurrent weight was above those of the other layers, and when; empty if it was not.

    Gradients are compared up to the first step that changed the median weight by half of it: later ones follow from that step.

    Args:
        evidence: of the run.
        begin: the first step of the findings.
    """
    track, roles = track_of(evidence, "grad", "norm"), roles_of(evidence)
    if track is None or roles is None:
        return ""
    recurs = roles.have_role(roles.owners(track.names), ("recurrent",)) & roles.are_weights(track.names)
    recurs &= np.array(["weight_hh" in name for name in track.names], dtype=np.bool_)
    others = roles.are_weights(track.names) & ~roles.have_role(roles.owners(track.names), ("recurrent", "embedding"))
    if not recurs.any() or not others.any():
        return ""
    shares = _shares(evidence, begin)
    far = shares[shares[:, 1] > FAR, 0]
    last = int(far[0]) if len(far) else begin
    for at in np.flatnonzero((track.steps >= begin - BEFORE) & (track.steps <= last)).tolist():
        norms = track.values[at]
        largest, other = float(np.max(norms[recurs])), float(np.max(norms[others]))
        if np.isfinite(largest) and largest > _THROUGH_TIME * other > 0:
            name = track.names[int(np.flatnonzero(recurs)[np.argmax(norms[recurs])])]
            rate = max(rates_of(evidence.facts_at(int(track.steps[at]))), default=0.0)
            return (
                f" At step {track.steps[at]} the norm of the gradient of {name} was {largest:.3g}, {largest / other:.2g} times "
                "that of the other layers" + (f"; the learning rate is {rate:.3g}." if rate > 0 else ".")
            )
    return ""


def has_jumped(evidence: Evidence, begin: int) -> bool:
    """Whether the loss jumps above all losses before where the findings began, or stays above the thirty before them.

    Args:
        evidence: of the run.
        begin: the first step of the findings.
    """
    loss = evidence.loss()
    if loss is None or not loss.values.shape[1]:
        return False
    finite = np.isfinite(loss.values[:, 0])
    before = loss.values[finite & (loss.steps < begin), 0][-BEFORE:]
    after = loss.values[finite & (loss.steps >= begin), 0][:LASTING]
    stays = len(before) == BEFORE and len(after) == LASTING and bool(after.min() > before.max())
    return stays or bool(jump_of(evidence, begin))


def has_moved_at_most_steps(evidence: Evidence, begin: int) -> bool:
    """Whether most weights are moved by other code at most steps since the findings began, and at ten steps at least.

    Args:
        evidence: of the run.
        begin: the first step of the findings.
    """
    track, roles = track_of(evidence, "param", "rms"), roles_of(evidence)
    moves = MovesBetweenSteps().moves(evidence) if track is not None and track_of(evidence, "update", "ratio") else None
    if track is None or roles is None or moves is None:
        return False
    weights = roles.are_weights(track.names)
    are_known = (np.isfinite(moves.limits) & np.isfinite(moves.shares))[:, weights]
    is_judged = are_known.any(axis=1) & (track.steps >= begin)
    moved = moves.holds[is_judged][:, weights].sum(axis=1) > are_known[is_judged].sum(axis=1) / 2
    return len(moved) >= LASTING and bool(moved.mean() > _MOST_STEPS)


def has_raised_rate(evidence: Evidence, begin: int) -> bool:
    """Whether the learning rate of a parameter group rose fivefold within a step, at most ten steps before the findings.

    Args:
        evidence: of the run.
        begin: the first step of the findings.
    """
    rates = [rates_of(evidence.facts_at(step)) for step in range(begin - LASTING - 1, begin + 1)]
    changes = (zip(before, after, strict=False) for before, after in pairwise(rates))
    return any(0 < before * RAISED <= after for change in changes for before, after in change)


def has_lowered_rate(evidence: Evidence) -> bool:
    """Whether the learning rates have fallen to a hundredth of their largest, most of the run being over since.

    Only at a quarter of the steps, or fewer, was the largest rate of a step a tenth of the largest one of the run or more. A
    schedule that falls evenly to the end of a fit stays above a tenth for most of it. The first steps must be known.

    Args:
        evidence: of the run.
    """
    steps = evidence.steps.tolist()
    if not steps or not evidence.holds_start:
        return False
    rates = np.array([max(rates_of(evidence.facts_at(step)), default=0.0) for step in steps])
    largest = rates.max()
    is_high = rates >= largest / _FELL
    return bool(largest > 0 and rates[-1] <= largest / _FELL**2 and is_high.mean() <= _MOST_HIGH)


def slowness(evidence: Evidence, begin: int) -> str:
    """How small the steps are, and how many times larger would be usual; empty if it is not known.

    Args:
        evidence: of the run.
        begin: the first step of the findings.
    """
    ratio, roles = track_of(evidence, "update", "ratio"), roles_of(evidence)
    if ratio is None or roles is None:
        return ""
    shares = np.where(roles.are_weights(ratio.names) & (ratio.values > 0), ratio.values, np.nan)
    since = medians(shares[ratio.steps >= begin])
    if not np.isfinite(since).any():
        return ""
    share, rate = float(np.nanmedian(since)), max(rates_of(evidence.facts_at(begin)), default=0.0)
    if not 0 < share < USUAL:
        return ""
    return f" The median step changes the median weight by {percent(share)} of it; {_usual(USUAL / share, rate)}."


def has_small_steps(evidence: Evidence, begin: int) -> bool:
    """Whether the median step before the findings began changed the median weight by less than a tenth of the usual share.

    Args:
        evidence: of the run.
        begin: the first step of the findings.
    """
    shares = _shares(evidence, begin, len(evidence.steps))[:, 1]
    return len(shares) > 0 and bool(np.median(shares) < SMALL)


def _usual(factor: float, rate: float) -> str:
    """The share that is usual, and what it would take.

    Args:
        factor: by which the step must be multiplied.
        rate: the learning rate; 0 if it is not known.
    """
    times, word = (factor, "larger") if factor > 1 else (1 / factor, "smaller")
    digits = f"{times:.2g}" if times < 100 or times >= 1e6 else f"{float(f'{times:.2g}'):.0f}"
    of_rate = f" than {rate:.3g}" if rate > 0 else ""
    text = f"about {percent(USUAL)} is usual, for which the rate must be {digits} times {word}{of_rate}"
    if rate > 0 and not _SMALLEST_RATE <= factor * rate <= _LARGEST_RATE:
        extreme = "small" if factor < 1 else "large"
        text += f". No usual rate is so {extreme}: look at the size of the loss, of its gradient and of the weights too"
    return text


def track_of(evidence: Evidence, tensor: str, stat: str) -> Track | None:
    """The track of a statistic; None also if no rule of the run collects it."""
    return evidence.track(tensor, stat) if (tensor, stat) in evidence.needs else None
