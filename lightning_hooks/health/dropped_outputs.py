"""Dropout that code puts behind a layer as a forward hook, as the output of the layer shows it."""

from __future__ import annotations

from typing import Final

import numpy as np

from lightning_hooks.comparing.exact import columns_of
from lightning_hooks.health.evidence import Evidence
from lightning_hooks.health.layers import roots_of_fan_in
from lightning_hooks.health.roles import WEIGHTED, Array, Mask, Roles
from lightning_hooks.health.track import Track, last_known

_NEEDS: Final = (
    *(("output", "zero_fraction"), ("output", "rms"), ("output", "dead_units")),
    *(("input", "zero_fraction"), ("input", "rms"), ("param", "rms")),
)
_MOVING: Final = 0.5
"""The share of the elements of units that are not dead which must be 0."""
_READS: Final = 0.5
"""The share of an input that may be 0: a layer without a bias gives zeros for zeros."""
_LARGER: Final = 3.0
"""The multiple of what weights make of independent inputs that the rest exceeds: dropout scales what it keeps."""


def dropped_outputs(evidence: Evidence, roles: Roles, most: float) -> tuple[Track, Mask] | None:
    """Where nearly all of the output of a layer with weights is 0, in other elements at each step, bool [window, rows].

    A sum of products is never exactly 0, so something behind the layer sets elements to 0. Dead units are zeros at the same
    places, and zeros of the input come from before the layer.

    Args:
        evidence: of the run.
        roles: of its modules.
        most: the smallest share of zeros.

    Returns:
        The shares of zeros, and where they are dropped; None if it cannot be seen.
    """
    if not set(_NEEDS) <= set(evidence.needs):
        return None
    zeros, sizes, dead, of_inputs, _, _ = tracks = [evidence.track(*need) for need in _NEEDS]
    if zeros is None or sizes is None or dead is None or of_inputs is None or any(each is None for each in tracks):
        return None
    if not (zeros.values[zeros.new] >= most).any():
        return None
    columns = columns_of(of_inputs.names, zeros.names)
    with np.errstate(invalid="ignore", divide="ignore"):
        reads_zeros = (columns < 0) | (of_inputs.values[:, columns] >= _READS).any(axis=0)
        dead_units = last_known(dead.values)
        moving = (zeros.values - dead_units) / (1 - dead_units)
        kept = sizes.values / np.sqrt(1 - zeros.values)
        is_larger = ~(kept < _LARGER * _made(evidence, roles, zeros.names))
    are_dropped = (
        (zeros.values >= most) & (moving >= _MOVING) & is_larger & roles.have_role(zeros.names, WEIGHTED) & ~reads_zeros
    )
    return zeros, are_dropped


def _made(evidence: Evidence, roles: Roles, names: tuple[str, ...]) -> Array:
    """The first root mean square of what the weight of each layer makes of independent inputs, [layers]; NaN if unknown."""
    params, inputs = evidence.track("param", "rms"), evidence.track("input", "rms")
    first_params, first_inputs = evidence.start("param", "rms"), evidence.start("input", "rms")
    if params is None or inputs is None or first_params is None or first_inputs is None:
        return np.full(len(names), np.nan)
    weights = [roles.weight(name) for name in names]
    of_params = columns_of(params.names, [each.name if each is not None else "" for each in weights])
    of_inputs = columns_of(inputs.names, names)
    sizes = np.where(of_params >= 0, first_params[of_params], np.nan) * np.where(
        of_inputs >= 0, first_inputs[of_inputs], np.nan
    )
    made: Array = sizes * roots_of_fan_in(roles, names)
    return made
