"""Losses with a minus sign, as far as the loss and the gradient of the outputs show them."""

from __future__ import annotations

from typing import Final

import numpy as np

from lightning_hooks.health.cross_entropy import NEEDS
from lightning_hooks.health.evidence import LOSS, Evidence
from lightning_hooks.health.layers import last_layer
from lightning_hooks.health.roles import Array, known_median, roles_of

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
