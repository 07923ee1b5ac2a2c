"""Rules on activations: saturation, outputs that do not depend on the input, massive units; dead ones are in `dead`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from lightning_hooks.health.evidence import Evidence
from lightning_hooks.health.layers import elements_per_unit, layers_of
from lightning_hooks.health.roles import Array, Mask, Roles, percent, roles_of
from lightning_hooks.health.rule import HealthRule, Kind, Severity, Symptom, missing, symptoms_where
from lightning_hooks.health.rules.base import (
    LASTING,
    Needs,
    Obstacles,
    all_the_same,
    has_new_values,
    held_at_measurements,
    held_for_steps,
    no_structure,
    updates_before,
)
from lightning_hooks.health.track import Track
from lightning_hooks.health.usage import is_named_copy

_SIGMOIDS: Final = ("Sigmoid",)
_TANHS: Final = ("Tanh",)


@dataclass(frozen=True, kw_only=True)
class SaturatedActivation(HealthRule):
    """The mean slope of a sigmoid or tanh is a small share of its largest slope.

    The mean slope follows exactly from the output: 1 − y² for tanh, and y − y² for a sigmoid.

    Args:
        at_start: the share below which a module that began so is saturated.
        later: the share below which a module is saturated that began otherwise.
    """

    at_start: float = 0.1
    later: float = 0.03
    patience: int = 10
    family: ClassVar[str] = "activations"
    kind: ClassVar[Kind] = "pattern"
    obstacles: ClassVar[Obstacles] = (no_structure,)
    needs: ClassVar[Needs] = (("output", "mean"), ("output", "rms"), ("output", "min"), ("output", "max"))
    next_steps: ClassVar[tuple[str, ...]] = (
        "Look at the scale of the input of the layer before, and normalise the data.",
        "Put a norm before the activation.",
        "Scale the initial weights and biases of the layer before down.",
    )
    source: ClassVar[str] = "smdebug and TheDeepChecker count saturated units; the mean slope is a number of the whole output"
    consequence: ClassVar[str] = (
        "Hardly any gradient passes an activation at its limits, so that the layers before it learn very slowly."
    )
    false_alarm: ClassVar[str] = (
        "A gate that is open or closed on purpose is saturated too. Outputs of a sigmoid on one side of 0.5 are therefore not "
        "judged."
    )

    def can_run(self, evidence: Evidence) -> str | None:
        reason, roles = super().can_run(evidence), roles_of(evidence)
        if reason is None and roles is not None:
            track = evidence.track("output", "rms")
            if track is not None and not roles.have_type(track.names, (*_SIGMOIDS, *_TANHS)).any():
                return "the model has no module Sigmoid or Tanh"
        return reason

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        rms, roles = evidence.track("output", "rms"), roles_of(evidence)
        mean, low, high = (evidence.track("output", stat) for stat in ("mean", "min", "max"))
        if rms is None or mean is None or low is None or high is None or roles is None:
            return ()
        tanhs, sigmoids = roles.have_type(rms.names, _TANHS), roles.have_type(rms.names, _SIGMOIDS)
        if not (tanhs | sigmoids).any():
            return ()
        slopes = slopes_of(roles, rms.names, rms.values, mean.values)
        first_rms, first_mean = evidence.start("output", "rms"), evidence.start("output", "mean")
        assert first_rms is not None and first_mean is not None
        began = slopes_of(roles, rms.names, first_rms[None], first_mean[None]) < self.at_start
        # If all outputs of a sigmoid lie on one side of 0.5, do not judge it: its bias may open or close a gate on purpose.
        one_sided = sigmoids & ((low.values > 0.5) | (high.values < 0.5))
        limit = np.where(began, self.at_start, self.later)
        judged = (tanhs | sigmoids) & layers_of(evidence, roles).are_hidden(rms.names)
        holds = (slopes < limit) & judged & ~one_sided
        return symptoms_where(rms._replace(stat="slope", values=slopes), holds, limit, _saturated, before=percent)


def slopes_of(roles: Roles, names: tuple[str, ...], rms: Array, mean: Array) -> Array:
    """The mean slope of each sigmoid or tanh, as a share of the largest slope of its kind; NaN for all other modules.

    Args:
        roles: of the modules.
        names: of modules, as the last axis of both arrays.
        rms: of their outputs, float64 [..., modules].
        mean: of their outputs, likewise.
    """
    square = np.square(rms)
    slopes = np.where(roles.have_type(names, _SIGMOIDS), 4.0 * (mean - square), 1.0 - square)
    known: Array = np.where(roles.have_type(names, (*_SIGMOIDS, *_TANHS)), np.maximum(slopes, 0.0), np.nan)
    return known


def _saturated(slope: float) -> str:
    return f"the mean slope is {percent(slope)} of the largest one"


@dataclass(frozen=True, kw_only=True)
class ConstantOutput(HealthRule):
    """The output of a layer is nearly the same for all samples.

    At the last layer the finding is a fact in two cases, whatever the loss does. Either its output varied at first, so that the
    representation collapses. Or all samples have got exactly the same output for ten updates, in which a head that starts at
    zero has left that state.

    Args:
        least: the smallest usual variation of units over the samples of a step, relative to their size.
        least_elements: the smallest number of elements of a unit in a step.
        lasting: the number of measured steps in a row at which the output must be constant. A healthy model may be constant for
            30 steps, while it learns how frequent classes are.
        updates: the number of updates, after the first, at which all outputs of the last layer must be exactly equal.
    """

    least: float = 0.0005
    least_elements: int = 4
    lasting: int = 5
    updates: int = LASTING
    patience: int = 2
    family: ClassVar[str] = "activations"
    kind: ClassVar[Kind] = "pattern"
    obstacles: ClassVar[Obstacles] = (no_structure,)
    needs: ClassVar[Needs] = (
        ("output", "unit_variation"),
        ("output", "count"),
        ("output", "zero_fraction"),
        ("update", "abs_max"),
    )
    next_steps: ClassVar[tuple[str, ...]] = (
        "Look at the first of the layers: dead or saturated units before it, or an input that is far from 0.",
        "If the loss draws representations together, add what pushes them apart.",
    )
    source: ClassVar[str] = (
        "tried: healthy language models vary by 0.17 % or more while they learn how frequent tokens are, faulty runs by 0.03 %"
    )
    consequence: ClassVar[str] = "If each sample gets the same output, nothing behind the layer can tell samples apart."
    false_alarm: ClassVar[str] = (
        "Models are constant for some steps while they learn how frequent classes are. A hidden layer is a note until the loss "
        "shows harm."
    )

    def can_run(self, evidence: Evidence) -> str | None:
        reason = super().can_run(evidence)
        return None if reason == missing(evidence, "update", "abs_max") else reason

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        track, roles, first = (
            evidence.track("output", "unit_variation"),
            roles_of(evidence),
            evidence.start("output", "unit_variation"),
        )
        counts = evidence.track("output", "count")
        if track is None or roles is None or first is None or counts is None or not has_new_values(track):
            return
        layers = layers_of(evidence, roles)
        few = elements_per_unit(roles, layers, track.names, counts.values) < self.least_elements
        pattern = (track.values < self.least) & ~roles.have_role(track.names, ("embedding", "dropout", "loss")) & ~few
        is_last = np.array([name == layers.last for name in track.names], dtype=np.bool_)
        holds = held_at_measurements(track, pattern, self.lasting)
        collapses = is_last & (first > 40 * self.least)
        equal = self._are_equal(evidence, roles, track, layers.last, few)
        filled = track._replace(values=np.where(equal, 0.0, track.values)) if equal.any() else track
        # The first update and ten more lie between twelve outputs, since an output is there before the update of its step.
        facts = held_for_steps(filled, equal, self.updates + 2, updates_before(evidence)) if equal.any() else equal
        exact = facts | (holds & (track.values == 0))
        yield from symptoms_where(track, holds & ~exact, self.least, _constant, pattern, collapses, percent)
        if exact.any():
            text = f"every sample gets exactly the same output{all_the_same(evidence)}"
            collapses |= facts.any(axis=0)
            yield from symptoms_where(filled, exact, self.least, lambda _: text, pattern | equal, collapses)

    def _are_equal(self, evidence: Evidence, roles: Roles, track: Track, last: str, few: Mask) -> Mask:
        """Where all samples get exactly the same output of the model, bool [window, rows].

        Only the last layer is judged, and not if its weight is frozen or it is a copy.
        """
        equal, zeros, weight = np.zeros_like(few), evidence.track("output", "zero_fraction"), roles.weight(last)
        frozen = evidence.facts.frozen if evidence.facts is not None else ()
        if last not in track.names or zeros is None or weight is None or weight.name in frozen or is_named_copy(last):
            return equal
        column = track.names.index(last)
        # The variation of outputs that are all 0 is 0/0.
        equal[:, column] = ((track.values[:, column] == 0) | (zeros.values[:, column] >= 1.0)) & ~few[:, column]
        return equal


def _constant(variation: float) -> str:
    return f"units vary by {percent(variation)} of their size over the samples of the step"


@dataclass(frozen=True, kw_only=True)
class MassiveActivation(HealthRule):
    """A few units are hundreds of times as large as the others. Large language models have such units without harm."""

    severity: Severity = Severity.INFO
    patience: int = 3
    family: ClassVar[str] = "activations"
    kind: ClassVar[Kind] = "pattern"
    needs: ClassVar[Needs] = (("output", "outlier_units"), ("output", "abs_max"))
    next_steps: ClassVar[tuple[str, ...]] = (
        "Look at `top_unit` over time: one unit that is always the same acts as a bias.",
        "Expect trouble with quantisation and in float16.",
    )
    source: ClassVar[str] = "Sun et al. 2024 (arXiv 2402.17762): above 100 and above 1000 times the median magnitude"
    consequence: ClassVar[str] = (
        "Single huge units cost precision in float16 and under quantisation, where they set the range for all others."
    )
    false_alarm: ClassVar[str] = "Large language models have such units without harm, so that the finding is information."

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        track = evidence.track("output", "outlier_units")
        return () if track is None else symptoms_where(track, track.values > 0, 0.0, _massive)


def _massive(units: float) -> str:
    return f"{units:.0f} unit{'' if units == 1 else 's'} above 100 and above 674 times the usual size"


RULES: Final[tuple[HealthRule, ...]] = (
    SaturatedActivation(),
    ConstantOutput(),
    MassiveActivation(),
)
"""The rules on activations, with their default thresholds."""
