"""Losses with a minus sign, as far as the loss and the gradient of the outputs show them."""

from __future__ import annotations

from typing import Final

import numpy as np

from lightning_hooks.health.cross_entropy import NEEDS
from lightning_hooks.health.evidence import LOSS, Evidence
from lightning_hooks.health.layers import last_layer
from lightning_hooks.health.roles import Array, known_median, roles_of, starts

_LEAST: Final = 16
"""The smallest number of steps from which a law is read."""
_RESIDUE: Final = 0.02
"""The largest relative deviation from the law, because of rounding."""
_VARIES: Final = 1.2
"""The quotient of the largest and the smallest size of a loss from which on the law is more than a coincidence."""
_TIMES: Final = 20.0
"""The multiple of the size of the first losses, or of 1 if that is less, to which one without a lower end has grown.

The negative logarithm of a density is not so far below 0: that of a number is above -16 where the numbers of float32 end.
"""
_STEEPER: Final = 10.0
"""The multiple of the first gradient to which that of such a loss has grown; it falls the faster the further it goes."""
_LAST: Final = 10  # losses
_WHOLE: Final = ("", "run/grad_norm")
_LARGEST: Final = ("output_grad", "abs_max")
_SIZE: Final = ("output", "rms")
_LEVEL: Final = 0.01
"""The relative range of the largest gradients of outputs that have one size, whatever the outputs are."""
_LINEAR: Final = (0.5, 1.02)
"""The loss as a share of the product of its gradient and the outputs: 1 if it is a multiple of them, less if signs differ."""
_FURTHER: Final = 5.0
"""The multiple of their first size to which such a loss and its outputs have grown."""


def factor_of_square(evidence: Evidence) -> float:
    """The factor, below 0, by which the loss is a multiple of the mean squared error of the last layer; NaN if it is not.

    The gradient of a mean squared error is 2 / n times the residuals. So the square of n / 2 times its root mean square is the
    error itself, and for a multiple of the error it is the loss times the factor, at each step.

    Args:
        evidence: of the run.
    """
    roles, loss = roles_of(evidence), evidence.loss()
    tracks = [evidence.track(*need) if need in evidence.needs else None for need in NEEDS[:2]]
    if roles is None or loss is None or not loss.values.shape[1]:
        return float("nan")
    name, columns = last_layer(evidence, roles), []
    for track in tracks:
        if track is None or name not in track.names:
            return float("nan")
        columns.append(track.values[:, track.names.index(name)])
    losses, (count, slope) = loss.values[:, 0], columns
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        factors = np.square(count / evidence.ranks * slope / 2) / losses
    is_known = np.isfinite(factors) & (factors != 0)
    factors, sizes = factors[is_known], np.abs(losses[is_known])
    if len(factors) < _LEAST or not (losses[is_known] < 0).all() or sizes.max() < _VARIES * sizes.min():
        return float("nan")
    factor = known_median(factors)
    return factor if bool((np.abs(factors / factor - 1) < _RESIDUE).all()) else float("nan")


def grows_with_outputs(evidence: Evidence) -> tuple[float, float] | None:
    """The sizes of the first and last losses below 0 that fall in proportion to the outputs of the last layer.

    A loss of margins or of yes or no is never below 0. With a minus sign it ends as a straight line of the outputs: each
    sample whose answer is wrong has a gradient of one size, and the loss is that gradient times the output. Both grow without
    end.

    Args:
        evidence: of the run.

    Returns:
        None for any other loss.
    """
    loss, roles = evidence.loss(), roles_of(evidence)
    needs = (*NEEDS[:2], _LARGEST, _SIZE)
    if loss is None or roles is None or not loss.values.shape[1] or not set(needs) <= set(evidence.needs):
        return None
    name, columns = last_layer(evidence, roles), []
    for need in needs:
        track = evidence.track(*need)
        if track is None or name not in track.names:
            return None
        columns.append(track.values[:, track.names.index(name)])
    is_known = np.isfinite(loss.values[:, 0]) & np.isfinite(columns).all(axis=0)
    losses, (count, slope, largest, size) = loss.values[is_known, 0], (each[is_known] for each in columns)
    start, first = evidence.start(*LOSS), float(starts(evidence, *_SIZE, (name,))[0])
    if len(losses) < _LEAST or start is None or not (start[0] < 0 and losses.max() < 0):
        return None
    last = slice(-_LAST, None)
    shares = -losses[last] / (count[last] / evidence.ranks * slope[last] * size[last])
    is_straight = (
        np.ptp(largest[last]) <= _LEVEL * largest[last].max() and _LINEAR[0] <= shares.min() <= shares.max() <= _LINEAR[1]
    )
    begin, now = float(abs(start[0])), float(np.abs(losses[last]).min())
    if not is_straight or now < _FURTHER * begin or not size[last].min() > _FURTHER * first > 0:
        return None
    return begin, now


def growth_below_zero(evidence: Evidence) -> tuple[float, float, float] | None:
    """The size of the first losses, that of the last ones, and the growth of the gradient, of a loss without a lower end.

    All losses are below 0, and both sizes have grown by far. None for any other loss.

    Args:
        evidence: of the run.
    """
    loss, start, early = evidence.loss(), evidence.start(*LOSS), evidence.early(*LOSS)
    whole = evidence.track(*_WHOLE) if _WHOLE in evidence.needs else None
    first_whole = None if whole is None else evidence.start(*_WHOLE)
    if loss is None or start is None or early is None or whole is None or first_whole is None or not loss.values.shape[1]:
        return None
    known: Array = loss.values[np.isfinite(loss.values[:, 0]), 0]
    if len(known) < _LEAST or not (start[0] < 0 and known.max() < 0):
        return None
    begin = float(np.abs(known[:5]).max()) if evidence.holds_start else float(np.nanmax(np.abs([start[0], early[0]])))
    now, steep = float(np.abs(known[-_LAST:]).min()), known_median(whole.values[-_LAST:, 0])
    if not (now > _TIMES * max(begin, 1.0) and steep > _STEEPER * first_whole[0] > 0):
        return None
    return begin, now, steep / float(first_whole[0])
