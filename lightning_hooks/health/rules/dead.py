"""Rules on what gives 0 for every sample: whole layers and single units."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from lightning_hooks.comparing.exact import columns_of
from lightning_hooks.health.evidence import Evidence
from lightning_hooks.health.layers import Layers, are_depthwise, elements_per_unit, layers_of, roots_of_fan_in
from lightning_hooks.health.roles import (
    NO_STRUCTURE,
    WEIGHTED,
    Mask,
    Roles,
    percent,
    roles_of,
    stalls,
    starts,
)
from lightning_hooks.health.rule import HealthRule, Kind, Severity, Symptom, missing, symptoms_where
from lightning_hooks.health.rules.base import Needs, Obstacles, has_new_values, held_for_steps, no_structure
from lightning_hooks.health.track import Track, last_known


@dataclass(frozen=True, kw_only=True)
class DeadLayer(HealthRule):
    """Every element of an activation, or of the input of a layer with weights, is 0, and the loss does not fall.

    While the loss falls, the layer is off the main path, as the gate of a block that starts at zero. An activation such as
    GELU or SiLU gives hardly anything, though never 0, where its whole input is far below 0.

    Args:
        lasting: the number of steps for which it must be so. Inputs are measured less often than outputs.
        passes: the largest share of its input that such an activation gives where nothing passes it.
    """

    lasting: int = 10
    passes: float = 0.005
    severity: Severity = Severity.CRITICAL
    patience: int = 2
    every_n_steps: int = 20
    family: ClassVar[str] = "activations"
    obstacles: ClassVar[Obstacles] = (no_structure,)
    needs: ClassVar[Needs] = (("output", "zero_fraction"), ("input", "zero_fraction"))
    next_steps: ClassVar[tuple[str, ...]] = (
        "Look at the layer before: a large negative bias or a weight of zeros gives zeros only.",
        "If the layer died during the run, look at the updates of the steps before: lower the learning rate.",
    )
    source: ClassVar[str] = "a layer of zeros passes no gradient to its weight; 10 steps, because one batch may be empty"
    consequence: ClassVar[str] = (
        "A layer that gives only zeros passes neither signal nor gradient, so that everything before it stops learning."
    )
    false_alarm: ClassVar[str] = (
        "A gate that starts closed is zero on purpose, and is not told while the loss falls. A single empty batch does not "
        "count either."
    )

    def can_run(self, evidence: Evidence) -> str | None:
        reason = super().can_run(evidence)
        if reason is not None and any(evidence.track(*need) is not None for need in self.needs):
            return None if roles_of(evidence) is not None else reason
        return reason

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        roles = roles_of(evidence)
        if roles is None or not stalls(evidence):
            return
        for tensor, kinds in (("output", ("activation",)), ("input", WEIGHTED)):
            track = evidence.track(tensor, "zero_fraction")
            if track is None:
                continue
            judged = roles.have_role(track.names, kinds)
            if tensor == "output":
                judged = judged | roles.are_rectifiers(track.names)
            dead = (track.values >= 1.0) & judged
            lasts = held_for_steps(track, dead, self.lasting)
            yield from symptoms_where(track, lasts, 1.0, _OF_ZEROS[tensor], dead)
        yield from self._of_smooth(evidence, roles)

    def _of_smooth(self, evidence: Evidence, roles: Roles) -> Iterator[Symptom]:
        """The smooth rectifiers whose output is a tiny share of their input."""
        sizes, inputs = (evidence.track(*key) if key in evidence.needs else None for key in _SIZES)
        if sizes is None or inputs is None:
            return
        columns = columns_of(inputs.names, sizes.names)
        are_smooth = roles.are_smooth_rectifiers(sizes.names)
        with np.errstate(invalid="ignore", divide="ignore"):
            shares = sizes.values / np.where((columns >= 0) & are_smooth, last_known(inputs.values)[:, columns], np.nan)
        shut = (shares > 0) & (shares < self.passes)
        if shut[sizes.new].any():
            of_shares = sizes._replace(values=shares)
            lasts = held_for_steps(of_shares, shut, self.lasting)
            yield from symptoms_where(of_shares, lasts, self.passes, _passes, shut)


_SIZES: Final = ("output", "rms"), ("input", "rms")


def _passes(share: float) -> str:
    return (
        f"the output is {percent(share)} of the input in size: all of the input lies far below 0, where hardly anything passes"
    )


_OF_ZEROS: Final = {
    "output": lambda _: "every element of the output is 0",
    "input": lambda _: "every element of the input is 0",
}


@dataclass(frozen=True, kw_only=True)
class DeadUnits(HealthRule):
    """Units are 0 for all samples of a step, at step after step.

    Rectifiers are not judged behind an input that hardly varies or is smaller than the layer's bias: the sign of a unit is
    then that of its bias, as in squeeze and excitation. Units with few elements in a step, and experts, whose elements change
    from step to step, are left out. So are linear layers whose weight started at zero, and depthwise convolutions, whose units
    are 0 where their input's are.

    Args:
        at_start: the share of a rectifier's units that may be dead in the first steps.
        later: the share of a rectifier's units that may be dead later.
        linear: the share of a linear layer's units that may be 0.
        start: the last of the first steps.
        least_elements: the smallest number of elements of a unit in a step.
        least_variation: the smallest variation of the input's units over the samples of a step.
        least_signal: the smallest part of a layer's output that comes from its input, as a multiple of that from its bias.
    """

    at_start: float = 0.5
    later: float = 0.75
    linear: float = 0.05
    start: int = 12
    least_elements: int = 16
    least_variation: float = 0.3
    least_signal: float = 2.0
    patience: int = 2
    family: ClassVar[str] = "activations"
    kind: ClassVar[Kind] = "pattern"
    obstacles: ClassVar[Obstacles] = (no_structure,)
    needs: ClassVar[Needs] = (
        ("output", "dead_units"),
        ("output", "zero_fraction"),
        ("output", "unit_variation"),
        ("output", "count"),
        ("input", "rms"),
        ("param", "rms"),
    )
    next_steps: ClassVar[tuple[str, ...]] = (
        "Look at the bias of the layer before, and at its updates of the steps before the units died.",
        "Lower the learning rate, start biases at 0 or above, or use an activation with a slope everywhere (GELU, LeakyReLU).",
    )
    source: ClassVar[str] = (
        "smdebug and TheDeepChecker warn at 50 % of the units, which fires on healthy trainings under way; 50 % in the first "
        "dozen steps and 75 % later did not"
    )
    consequence: ClassVar[str] = (
        "A dead unit gives the same output for all samples and gets no gradient, so that it rarely comes back. The layer works "
        "with fewer units."
    )
    false_alarm: ClassVar[str] = (
        "Sparse layers with many inactive units are usual under ReLU and in experts. The finding is a note until the loss "
        "shows harm."
    )

    def can_run(self, evidence: Evidence) -> str | None:
        if roles_of(evidence) is None:
            return NO_STRUCTURE
        lacks = [stat for stat in ("dead_units", "unit_variation") if evidence.track("output", stat) is None]
        return missing(evidence, "output", lacks[0]) if lacks else None

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        track, roles, first = evidence.track("output", "dead_units"), roles_of(evidence), evidence.start("output", "dead_units")
        zeros, counts = evidence.track("output", "zero_fraction"), evidence.track("output", "count")
        if track is None or roles is None or first is None or zeros is None or counts is None or not has_new_values(track):
            return
        if not (track.values[track.new] >= min(self.linear, self.at_start, self.later)).any():
            return
        layers = layers_of(evidence, roles)
        many = elements_per_unit(roles, layers, track.names, counts.values) >= self.least_elements
        many &= ~roles.are_experts(track.names)
        began_dead = (
            (first >= self.at_start) & (evidence.first_step <= self.start) & self._began_driven(evidence, layers, track)
        )
        limit = np.where(began_dead | (track.steps[:, None] <= self.start), self.at_start, self.later)
        rectifiers = roles.are_rectifiers(track.names) & many & self._are_driven(evidence, roles, layers, track)
        yield from symptoms_where(track, (track.values >= limit) & rectifiers, limit, _dead, before=percent)
        # `dead_units` also counts units of magnitudes below 1e-5. Require that as large a share of all elements is exactly 0.
        exact = zeros.values >= track.values - 1e-9
        linear = roles.have_role(track.names, WEIGHTED) & _have_weights(evidence, roles, track.names)
        linear &= ~are_depthwise(roles, layers, track.names)
        yield from symptoms_where(track, (track.values >= self.linear) & exact & linear, self.linear, _dead, before=percent)

    def _began_driven(self, evidence: Evidence, layers: Layers, track: Track) -> Mask:
        """Whether the input of the layer before each module varied at the start, bool [rows].

        On the plateau where deep networks start, each unit has one sign for all samples, and half of them are negative.
        """
        variation, first = evidence.track("output", "unit_variation"), evidence.start("output", "unit_variation")
        if variation is None or first is None:
            return np.ones(len(track.names), dtype=np.bool_)
        columns = columns_of(variation.names, [layers.before.get(name, "") for name in track.names])
        began: Mask = (columns < 0) | ~(first[columns] < self.least_variation)
        return began

    def _are_driven(self, evidence: Evidence, roles: Roles, layers: Layers, track: Track) -> Mask:
        """Whether the input of the layer before each module, not its bias, decides what is dead, bool [window, rows]."""
        driven = np.ones(track.values.shape, dtype=np.bool_)
        variation, inputs = evidence.track("output", "unit_variation"), evidence.track("input", "rms")
        if variation is not None:
            columns = columns_of(variation.names, [layers.before.get(name, "") for name in track.names])
            driven &= (columns < 0) | ~(variation.values[:, columns] < self.least_variation)
        if inputs is not None:
            columns = columns_of(inputs.names, [layers.weighted.get(name, "") for name in track.names])
            driven &= (columns < 0) | ~self._are_ruled_by_bias(evidence, roles, inputs)[:, columns]
        return driven

    def _are_ruled_by_bias(self, evidence: Evidence, roles: Roles, inputs: Track) -> Mask:
        """Whether a bias of ordinary size outweighs the input of each layer, bool [window, rows].

        A bias that is larger than the layer's gain is not ordinary: it is what kills the units.
        """
        sizes = evidence.track("param", "rms")
        if sizes is None:
            return np.zeros(inputs.values.shape, dtype=np.bool_)
        weights = [roles.weight(name) for name in inputs.names]
        of_weights = columns_of(sizes.names, [each.name if each is not None else "" for each in weights])
        of_biases = columns_of(sizes.names, [f"{name}.bias" for name in inputs.names])
        gains = np.where(of_weights >= 0, sizes.values[:, of_weights], np.nan) * roots_of_fan_in(roles, inputs.names)
        biases = np.where(of_biases >= 0, sizes.values[:, of_biases], np.nan)
        ruled: Mask = (gains * inputs.values < self.least_signal * biases) & (biases <= gains)
        return ruled


def _dead(share: float) -> str:
    return f"{percent(share)} of the units are 0 for every sample of the step"


def _have_weights(evidence: Evidence, roles: Roles, names: tuple[str, ...]) -> Mask:
    """Which modules have a weight that did not start at zero on purpose, and is not frozen, which it may be at zero."""
    weights = [roles.weight(name) for name in names]
    frozen = evidence.facts.frozen if evidence.facts is not None else ()
    rms = starts(evidence, "param", "rms", [each.name if each is not None else "" for each in weights])
    trained = np.array([each is not None and each.name not in frozen for each in weights], dtype=np.bool_)
    have: Mask = trained & ~(rms == 0)
    return have


RULES: Final[tuple[HealthRule, ...]] = (DeadLayer(), DeadUnits())
"""The rules on layers and units that are 0, with their default thresholds."""
