"""Probes: what can be measured of a step, by the field of the record that it fills."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lightning_hooks.checks.probes import dropouts, functions, modules, parameters
from lightning_hooks.checks.probes.probe import Probe

PROBES: Final[Mapping[str, type[Probe]]] = {
    each.field: each
    for each in (
        parameters.Losses,
        parameters.Grads,
        parameters.Moved,
        parameters.OptimizerMoved,
        parameters.Stepped,
        parameters.Hidden,
        parameters.InputGrads,
        modules.Calls,
        modules.Called,
        modules.Traced,
        modules.Layers,
        modules.Sources,
        functions.LossCalls,
        functions.Draws,
        functions.Read,
        functions.Broadcasts,
        dropouts.Dropouts,
    )
}
"""The probes that a check can register, by name."""
