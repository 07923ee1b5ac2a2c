"""Layers: which module feeds which, as far as the order of execution and the structure tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from lightning_hooks.health.evidence import Evidence
from lightning_hooks.health.roles import WEIGHTED, Array, Mask, Roles

LINK: Final = 20.0
"""The input of a layer comes from the layer before it if their sizes differ by less than this factor."""


@dataclass(frozen=True)
class Layers:
    """What runs before and behind each module.

    Args:
        weighted: for each module the linear layer or convolution that is itself or that ran last before it.
        before: for each module the one that ran directly before that layer.
        behind: the modules behind which another layer with weights runs, inside the same child of the model.
        first: the layer with weights that runs first; empty if there is none.
        ordered: all layers with weights in the order of execution.
    """

    weighted: dict[str, str]
    before: dict[str, str]
    behind: frozenset[str]
    first: str
    ordered: tuple[str, ...]

    @property
    def last(self) -> str:
        """The layer with weights that runs last; empty if there is none."""
        return self.ordered[-1] if self.ordered else ""

    def are_hidden(self, names: Sequence[str]) -> Mask:
        """Which modules have another layer with weights behind them, inside the same child of the model.

        The last activation of a network gives probabilities or pixels, which lie at their ends when the network has learned.
        The last activation of a generator is followed by the discriminator, hence the same child.
        """
        return np.array([name in self.behind for name in names], dtype=np.bool_)


def layers_of(evidence: Evidence, roles: Roles) -> Layers:
    """The layers of a model in the order of execution."""
    return roles.remember("layers", evidence.order, lambda: _in_order(evidence.order, roles))


def last_layer(evidence: Evidence, roles: Roles) -> str:
    """The layer with weights that runs last among those whose output gets a gradient; among all if no row of it tells.

    A teacher that runs behind its student has no gradient, and the loss is that of the student's outputs.
    """
    layers = layers_of(evidence, roles)
    key = "output_grad", "rms"
    track, first = (evidence.track(*key), evidence.start(*key)) if key in evidence.needs else (None, None)
    if track is None or first is None:
        return layers.last
    reached = (name for name in reversed(layers.ordered) if name in track.names)
    return next((name for name in reached if not np.isnan(first[track.names.index(name)])), layers.last)


def _in_order(order: tuple[str, ...], roles: Roles) -> Layers:
    weighted: dict[str, str] = {}
    before: dict[str, str] = {}
    ends: dict[str, int] = {}
    current = previous = first = first_before = ""
    ordered: list[str] = []
    for position, name in enumerate(order):
        if roles.role(name) in WEIGHTED:
            current, first_before, first = name, previous, first or name
            ordered.append(name)
            ends[_child(name)] = ends[""] = position
        weighted[name], before[name] = current, first_before
        previous = name
    behind = frozenset(name for position, name in enumerate(order) if ends.get(_child(name), -1) > position)
    return Layers(weighted, before, behind, first, tuple(ordered))


def _child(name: str) -> str:
    """The child of the model that holds a module; empty for a module that is a child itself."""
    child, dot, _ = name.partition(".")
    return child if dot else ""


def elements_per_unit(roles: Roles, layers: Layers, names: tuple[str, ...], counts: Array) -> Array:
    """The number of elements that each unit of a tensor has, float64 of the shape of `counts`; NaN if the units are unknown.

    The units of a module are taken to be those of the last layer with weights.
    """
    units = roles.remember("units", names, lambda: np.array([units_of(roles, layers.weighted.get(name, "")) for name in names]))
    per_unit: Array = counts / units
    return per_unit


def are_depthwise(roles: Roles, layers: Layers, names: tuple[str, ...]) -> Mask:
    """Which modules are convolutions each of whose units reads one unit of a layer before them: units that are 0 stay so.

    The first layer of a model, which may read images of one channel, is none of these.
    """

    def is_depthwise(name: str) -> bool:
        weight = roles.weight(name)
        reads_one = weight is not None and len(weight.shape) > 2 and weight.shape[1] == 1
        return reads_one and roles.role(name) == "convolution" and name != layers.first

    return roles.remember("depthwise", names, lambda: np.array([is_depthwise(name) for name in names], dtype=np.bool_))


def units_of(roles: Roles, layer: str) -> float:
    """The number of output units of a linear layer or convolution; NaN if unknown."""
    weight = roles.weight(layer)
    if weight is None:
        return float("nan")
    return float(weight.shape[_is_transposed(roles, layer)])


def inputs_of(roles: Roles, layer: str) -> float:
    """The number of input units of a linear layer, or of a convolution without groups; NaN if unknown."""
    weight = roles.weight(layer)
    return float("nan") if weight is None else float(weight.shape[1 - _is_transposed(roles, layer)])


def roots_of_fan_in(roles: Roles, layers: tuple[str, ...]) -> Array:
    """The square root of the number of inputs of each output, float64 [layers]; NaN for modules without a weight.

    The root mean square of a weight times this number is the factor by which the layer scales inputs that are independent.
    """
    return roles.remember("fan in", layers, lambda: np.sqrt([_fan_in(roles, layer) for layer in layers]))


def _fan_in(roles: Roles, layer: str) -> float:
    weight = roles.weight(layer)
    return float("nan") if weight is None else float(np.prod(weight.shape)) / weight.shape[_is_transposed(roles, layer)]


def _is_transposed(roles: Roles, layer: str) -> bool:
    module = roles.modules.get(layer)
    # The Conv1D of transformers is a linear layer with a weight [inputs, outputs].
    return module is not None and ("Transpose" in module.type or module.type == "Conv1D")
