"""Harm: what the loss of a run shows of it. A pattern, which also occurs in healthy training, is a warning only with harm."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from lightning_hooks.health.chance import chance_reached, late_losses
from lightning_hooks.health.cross_entropy import begins_trained, cross_entropy_of
from lightning_hooks.health.early_losses import EarlyLosses
from lightning_hooks.health.evidence import LOSS, Evidence
from lightning_hooks.health.rules.spikes import largest_deviation
from lightning_hooks.health.usage import is_warming_up, losses_may_balance
from lightning_hooks.health.witness import ZERO, error_of, learned, noise_of

RECENT: Final = 10
"""The number of losses whose median is the level at a step."""
SHORT, LONG = 50, 150
"""The numbers of last losses in which a loss that is to fall falls."""
_BEGIN: Final = 5  # losses whose median is the beginning
_FIRST: Final = 25  # losses of the beginning
_LEAST: Final = 32  # losses that a judgement needs
_TIMES_NOISE: Final = 3.0  # standard errors of the difference of two levels that are no chance
_FALL: Final = 0.1
"""The share of its level that a loss which is said to stand can have lost at most, with its noise."""
JUMP: Final = "the loss jumps"
"""The beginning of what says so."""
_JUMP: Final = 4.0  # a multiple of the largest deviation of the losses before, which is no chance
_NEAR: Final = 2  # steps
_DIGIT: Final = 2.0**-7  # a share by which the last digit of bfloat16, the coarsest format of a loss, changes it at most
_Losses = NDArray[np.float64]


def harm_of(evidence: Evidence) -> str:
    """What shows, at the last step, that a run does not learn or has lost what it had learned; empty if nothing does.

    The loss is not finite; it has given back half of what it had gained; its level is above each of the first losses; or it has
    not fallen in the last 50 steps, nor in the last 150, although more than half of it is left or it is at chance. Of a
    training with several losses, which may balance, only the first counts. While the learning rate rises, a loss need
    not fall yet; that of a model which was trained before need not fall at all. One that has fallen by more than a tenth and
    its noise may be at its end, unless it is a cross entropy, whose end is near 0.

    Args:
        evidence: of the run. Without a loss there is no witness of harm.

    Example:
        >>> from lightning_hooks.plan.row_index import RowIndex
        >>> from lightning_hooks.records.step_view import StepView
        >>> index, evidence = RowIndex(["loss"], ["loss"]), Evidence()
        >>> for step in range(60):
        ...     evidence.add(StepView(step, rows=index, moments=np.array([[1.0, 2.3, 0.0, 2.3, 2.3, 2.3, 0.0, 0.0, 0.0]])))
        >>> harm_of(evidence)
        'the loss has not fallen: it was 2.3 at step 10 and is 2.3 at step 59'
    """
    loss, first, early = evidence.loss(), evidence.start(*LOSS), evidence.early(*LOSS)
    if loss is None or first is None or early is None or not loss.values.shape[1]:
        return ""
    values = np.where(_are_bad(evidence), np.inf, loss.values[:, 0])
    is_known = ~np.isnan(values)
    values, steps = values[is_known], loss.steps[is_known]
    if not len(values):
        return ""
    finite = np.isfinite(values)
    if not finite[-1]:
        begin = int(np.flatnonzero(finite)[-1]) + 1 if finite.any() else 0
        return f"the loss is not finite since step {steps[begin]}"
    values, steps = values[finite], steps[finite]
    if len(values) < _LEAST or losses_may_balance(evidence):
        return ""
    began, highest = float(np.nanmax([first[0], early[0]])), np.inf
    if evidence.holds_start:
        began, highest = float(np.median(values[:_BEGIN])), float(values[:_FIRST].max())
    return _loss_of_gain(values, steps, began, highest) or _stand_still(evidence, values, steps, began)


def jump_of(evidence: Evidence, step: int) -> str:
    """How the loss jumps, above all losses before, near a step; empty if it does not.

    Args:
        evidence: of the run.
        step: at which something else was seen last, such as the return of a gradient from a bad batch up to two steps before.
    """
    loss = evidence.loss()
    if loss is None or not loss.values.shape[1]:
        return ""
    values = loss.values[:, 0]
    for at in np.flatnonzero(np.abs(loss.steps - step) <= _NEAR).tolist():
        history = _settled(evidence, values[:at], loss.steps[:at])[-LONG:]
        if len(history) < _LEAST or not values[at] > -np.inf:
            continue
        level, deviation = largest_deviation(history)
        # Losses that are all equal have no deviation, and their last digit may change at any step.
        if values[at] > level + max(_JUMP * deviation, _DIGIT * abs(level)):
            return f"{JUMP} from {level:.4g} to {values[at]:.4g} at step {loss.steps[at]}"
    return ""


def _settled(evidence: Evidence, values: _Losses, steps: NDArray[np.int64]) -> _Losses:
    """The finite losses without the first ones, whose fall is no deviation of later ones, unless too few are left."""
    finite = np.isfinite(values)
    later = values[finite & (steps >= evidence.first_step + EarlyLosses.FIRST)]
    return later if len(later) >= _LEAST else values[finite]


def _are_bad(evidence: Evidence) -> NDArray[np.bool_]:
    """At which steps the loss is NaN or infinite, bool [window], as far as a rule of the run counts such elements."""
    key = "loss", "nonfinite"
    track = evidence.track(*key) if key in evidence.needs else None
    return np.zeros(len(evidence.steps), dtype=np.bool_) if track is None else track.values[:, 0] > 0


def _loss_of_gain(values: _Losses, steps: NDArray[np.int64], began: float, highest: float) -> str:
    levels = np.median(sliding_window_view(values, RECENT), axis=1)
    now, best = float(levels[-1]), int(levels.argmin())
    least = max(_TIMES_NOISE * error_of(noise_of(values), RECENT, RECENT), _DIGIT * abs(now))
    if now > highest + least:
        return f"the loss has risen: it was {highest:.4g} at most at the beginning and is {now:.4g} at step {steps[-1]}"
    gain = began - float(levels[best])
    if gain > 2 * least and now > levels[best] + gain / 2:
        return (
            f"the loss has given back most of what it had gained: it began at {began:.4g}, was {levels[best]:.4g} at step "
            f"{steps[best + RECENT - 1]} and is {now:.4g} at step {steps[-1]}"
        )
    return ""


def _stand_still(evidence: Evidence, values: _Losses, steps: NDArray[np.int64], began: float) -> str:
    now = float(np.median(values[-RECENT:]))
    if abs(began) < ZERO or len(values) < SHORT or is_warming_up(evidence) or begins_trained(evidence):
        return ""
    chance = chance_reached(evidence)
    if now <= began - abs(began) / 2 and chance is None:
        return ""
    if chance is None and _may_be_done(evidence, began - now, began):
        return ""
    if evidence.loss_falls(SHORT) is not False or evidence.loss_falls(LONG):
        return ""
    # Noise may hide a fall, and a sentence must not call that no fall. More losses have medians with less noise.
    for count, level, now in (_levels(values, SHORT, RECENT), _levels(values, LONG, LONG // 4)):
        error = error_of(noise_of(values[-count:]), count // 4, RECENT if count == SHORT else count // 4)
        if level - now + 2 * error <= _FALL * abs(level) or chance is not None:
            text = f"the loss has not fallen: it was {level:.4g} at step {steps[-count]} and is {now:.4g} at step {steps[-1]}"
            return text if chance is None else f"{text}; that of {chance.of} is {chance.loss:.4g}"
    return ""


def _levels(values: _Losses, count: int, last: int) -> tuple[int, float, float]:
    """The number of last losses that there are, the median of their first quarter, and that of the last ones."""
    count = min(count, len(values))
    quarter = values[-count:][: count // 4]
    return count, float(np.median(quarter)), float(np.median(values[-min(last, count // 4) :]))


def _may_be_done(evidence: Evidence, gain: float, began: float) -> bool:
    """Whether a loss that stands has fallen far enough to be at its end, which is not known to be 0.

    So it is with the likelihood of a density, which may be of both signs, and with an error whose least value is the noise of
    the targets. A cross entropy of known classes is at its end near 0.
    """
    if gain <= _FALL * abs(began) or cross_entropy_of(evidence) is not None:
        return False
    return learned(evidence.early_losses(), late_losses(evidence)) is True
