"""Roles: which rows are weights, rectifiers or first layers, as the structure of the model says."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.health.evidence import LOSS, Evidence
from lightning_hooks.health.memo import memo_of
from lightning_hooks.health.witness import lost
from lightning_hooks.records.facts import ModuleFacts, ParameterFacts, Structure

Mask = NDArray[np.bool_]
Array = NDArray[np.float64]
T = TypeVar("T")
NO_STRUCTURE: Final = "the structure of the model is not known"
WEIGHTED: Final = ("linear", "convolution")
"""The roles of modules that multiply their input with a weight."""
EXPERT: Final = re.compile(r"(?P<list>(?:.*\.)?\w*experts?\w*)\.(?P<index>\d+)(?:\.|$)", re.IGNORECASE)
"""The name of a module inside a member of a list of experts."""
_MOST_KNOWN: Final = 64
_BATCH_NORM: Final = re.compile(r"BatchNorm")
_NORM_OF_UNITS: Final = re.compile(r"(Layer|Group|RMS|LocalResponse)Norm")
_RECTIFIER: Final = re.compile(r"relu", re.IGNORECASE)
_SMOOTH: Final = re.compile(r"gelu|silu|swish|mish|softplus", re.IGNORECASE)
_LEAKY: Final = re.compile(r"leaky|prelu|rrelu", re.IGNORECASE)


class Roles:
    """What a structure says about modules and parameters, by their names.

    Args:
        structure: of the model.

    Attributes:
        modules: the facts of each module.
        parameters: the facts of each parameter.

    Example:
        >>> linear = ModuleFacts("fc", "Linear", "linear")
        >>> weight = ParameterFacts("fc.weight", "fc", (3, 2), "float32")
        >>> bias = ParameterFacts("fc.bias", "fc", (3,), "float32")
        >>> roles = Roles(Structure((linear,), (weight, bias)))
        >>> roles.are_weights(("fc.bias", "fc.weight")).tolist(), roles.have_role(("fc", "act"), ("linear",)).tolist()
        ([False, True], [True, False])
    """

    def __init__(self, structure: Structure) -> None:
        self.modules: dict[str, ModuleFacts] = {each.name: each for each in structure.modules}
        self.parameters: dict[str, ParameterFacts] = {each.name: each for each in structure.parameters}
        self._known: dict[tuple[str, tuple[str, ...]], Any] = {}
        self._weights: dict[str, ParameterFacts] = {}
        for each in structure.parameters:
            if is_weight(each.shape):
                self._weights.setdefault(each.module, each)
        # A tied weight belongs to each module that has it by another name, as to a head that has the weight of an embedding.
        for each in structure.parameters:
            for other in each.others if is_weight(each.shape) else ():
                self._weights.setdefault(other.rpartition(".")[0], each)

    def role(self, name: str) -> str:
        """The role of a module; `other` for a module that the structure does not hold."""
        module = self.modules.get(name)
        return module.role if module else "other"

    def have_role(self, names: tuple[str, ...], roles: Sequence[str]) -> Mask:
        """Which modules have one of these roles."""
        return self._mask("/".join(roles), names, lambda name: self.role(name) in roles)

    def are_rectifiers(self, names: tuple[str, ...]) -> Mask:
        """Which modules are activations that give exactly 0 for every negative input."""
        return self._mask("rectifiers", names, lambda name: is_rectifier(self.modules.get(name)))

    def are_smooth_rectifiers(self, names: tuple[str, ...]) -> Mask:
        """Which modules are activations that are about 0 far below 0, and about their input far above."""
        return self._mask("smooth", names, lambda name: self.role(name) == "activation" and self._is_smooth(name))

    def _is_smooth(self, name: str) -> bool:
        return bool(_SMOOTH.search(self.modules[name].type))

    def are_experts(self, names: tuple[str, ...]) -> Mask:
        """Which modules belong to a member of a list of experts, `experts.3`, by the name of the list."""
        return self._mask("experts", names, lambda name: EXPERT.match(name) is not None)

    def are_named(self, names: tuple[str, ...], pattern: re.Pattern[str]) -> Mask:
        """Which names contain what a pattern describes."""
        return self._mask(f"named {pattern.pattern}", names, lambda name: pattern.search(name) is not None)

    def have_type(self, names: tuple[str, ...], types: Sequence[str]) -> Mask:
        """Which modules have a class with one of these names."""
        named = {name for name, module in self.modules.items() if module.type in types}
        return self._mask(f"types {'/'.join(types)}", names, named.__contains__)

    def are_weights(self, names: tuple[str, ...]) -> Mask:
        """Which parameters are matrices or more: biases, gains of norms and single vectors are not."""
        return self._mask("weights", names, lambda name: name in self.parameters and is_weight(self.parameters[name].shape))

    def weight(self, module: str) -> ParameterFacts | None:
        """The first weight of a module, its own before a tied one; None if it has none."""
        return self._weights.get(module)

    def owners(self, parameters: tuple[str, ...]) -> tuple[str, ...]:
        """The modules that hold these parameters; for an unknown parameter, what its name says."""
        known = self.parameters
        return tuple(known[name].module if name in known else name.rpartition(".")[0] for name in parameters)

    def remember(self, what: str, names: tuple[str, ...], compute: Callable[[], T]) -> T:
        """What follows from the structure and some names, computed once: the names of a run hardly ever change."""
        key = what, names
        if key not in self._known:
            if len(self._known) > _MOST_KNOWN:
                self._known.clear()
            self._known[key] = compute()
        return cast(T, self._known[key])

    def _mask(self, what: str, names: tuple[str, ...], holds: Callable[[str], bool]) -> Mask:
        return self.remember(what, names, lambda: np.array([holds(name) for name in names], dtype=np.bool_))


def roles_of(evidence: Evidence) -> Roles | None:
    """The roles of the model of a run; None if its structure is not known."""
    structure = evidence.structure
    if structure is None:
        return None
    memo = memo_of(structure)
    if "roles" not in memo:
        memo["roles"] = Roles(structure)
    roles: Roles = memo["roles"]
    return roles


def is_weight(shape: tuple[int, ...]) -> bool:
    """Whether a parameter of this shape is a matrix or more, once dimensions of size 1 are ignored.

    Example:
        >>> is_weight((8, 4)), is_weight((8,)), is_weight((1, 1, 8))
        (True, False, False)
    """
    return sum(size > 1 for size in shape) >= 2


def is_rectifier(module: ModuleFacts | None) -> bool:
    """Whether a module is an activation that gives exactly 0 for every negative input, by the name of its class."""
    if module is None or module.role not in ("activation", "other"):
        return False
    return _RECTIFIER.search(module.type) is not None and _LEAKY.search(module.type) is None


def is_batch_norm(module: ModuleFacts) -> bool:
    """Whether a module is a batch norm, by the name of its class."""
    return _BATCH_NORM.search(module.type) is not None


def without_parametrizations(names: Iterable[str]) -> list[str]:
    """The names of modules, without those that compute a weight from others: their input is no activation.

    Example:
        >>> without_parametrizations(["fc", "fc.parametrizations.weight.0", "head"])
        ['fc', 'head']
    """
    return [name for name in names if "parametrizations" not in name.split(".")]


def keeps_offset(kind: str) -> bool:
    """Whether a norm behind a layer keeps the offset of the layer's input, by the name of its class.

    An offset of all samples adds one number to each unit of the layer. A norm over the samples of each unit takes it away. A
    norm over the units of each sample divides it by the same number as what differs between samples.

    Example:
        >>> keeps_offset("LayerNorm"), keeps_offset("BatchNorm1d"), keeps_offset("LlamaRMSNorm")
        (True, False, True)
    """
    return _NORM_OF_UNITS.search(kind) is not None


def aligned(values: Array | None, names: Sequence[str], to: Sequence[str]) -> Array:
    """Numbers of rows in the order of other rows, float64 [len(to)]; NaN for a row without a number.

    Example:
        >>> aligned(np.array([1.0, 2.0]), ["a", "b"], ["b", "c"]).tolist()
        [2.0, nan]
    """
    by_name = {} if values is None else dict(zip(names, values.tolist(), strict=True))
    return np.array([by_name.get(name, np.nan) for name in to], dtype=np.float64)


def starts(evidence: Evidence, tensor: str, stat: str, to: Sequence[str]) -> Array:
    """The first measurement of a statistic, for the rows `to`; NaN where there is none."""
    track, first = evidence.track(tensor, stat), evidence.start(tensor, stat)
    return aligned(first, track.names if track else (), to)


def percent(share: float) -> str:
    """A share in words.

    Example:
        >>> percent(0.183), percent(1e-7), percent(1.0)
        ('18 %', '1e-05 %', '100 %')
    """
    return f"{100 * share:.2g} %" if share < 0.995 else f"{100 * share:.0f} %"


def stalls(evidence: Evidence) -> bool:
    """The second witness of patterns that also occur in healthy training: the loss does not fall, or it is not measured.

    A loss that is lower than 50 steps ago, but not lower than 150 steps ago, fluctuates.
    """
    return evidence.loss() is None or evidence.loss_falls() is False or evidence.loss_falls(150) is False


def steps_lost(evidence: Evidence) -> Mask:
    """At which steps of the window the loss has given back half of what it gained, bool [window]; all if it is not measured."""
    loss, early = evidence.loss(), evidence.early(*LOSS)
    if loss is None or early is None:
        return np.ones(len(evidence.steps), dtype=np.bool_)
    return lost(loss.values[:, 0], float(early[0]))


def known_median(values: Array) -> float:
    """The median of the finite numbers; NaN if there are none."""
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if len(finite) else float("nan")


def medians(values: Array) -> Array:
    """The median of each step, float64 [window]; of two numbers the smaller. NaN does not count; NaN if there is no number."""
    ordered = np.sort(values, axis=1)
    counts = np.isfinite(values).sum(axis=1)
    columns = np.maximum((counts - 1) // 2, 0)
    medians: Array = np.where(counts > 0, ordered[np.arange(len(values)), columns], np.nan)
    return medians
