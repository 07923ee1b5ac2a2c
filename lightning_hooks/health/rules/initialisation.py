"""Rules on the first steps: weights that start too large, too small or unlike their siblings, and inputs far from normal."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from lightning_hooks.health.evidence import Evidence
from lightning_hooks.health.layers import LINK, roots_of_fan_in
from lightning_hooks.health.roles import (
    WEIGHTED,
    Array,
    Mask,
    Roles,
    is_weight,
    keeps_offset,
    roles_of,
    starts,
    without_parametrizations,
)
from lightning_hooks.health.rule import HealthRule, Kind, Symptom, symptoms_where
from lightning_hooks.health.rules.base import Needs, Obstacles, no_structure
from lightning_hooks.health.rules.first_loss import InitialLoss
from lightning_hooks.health.track import Track

FIRST_STEPS: Final = 3
"""A run that was watched from a later step on says nothing about its start."""
_USUAL_GAIN: Final = (0.2, 3.0)
"""The root mean square of a weight times the root of its fan-in: 0.58 by default in torch, 1.4 after `kaiming_normal_`."""


def _no_start(evidence: Evidence) -> str | None:
    """An obstacle of a rule on the first measurement of each row."""
    is_late = evidence.first_step >= FIRST_STEPS
    return f"the run was watched from step {evidence.first_step} on, not from its start" if is_late else None


@dataclass(frozen=True, kw_only=True)
class PoorInitialization(HealthRule):
    """A layer makes its input far larger at the start, or a row of layers makes it fade or grow by orders of magnitude.

    Args:
        most_gain: the largest usual quotient of output and input of one layer, and the largest usual output of an embedding.
        most_recurrent: the largest usual quotient of output and input of a recurrent layer. Gates and tanh keep it below 1 for
            usual inputs, and a state that grows from step to step has gradients that grow likewise.
        most_growth: the largest usual growth from the first to the last layer of a row without norms; also its least decay.
    """

    most_gain: float = 30.0
    most_recurrent: float = 10.0
    most_growth: float = 1000.0
    patience: int = 2
    family: ClassVar[str] = "activations"
    kind: ClassVar[Kind] = "pattern"
    obstacles: ClassVar[Obstacles] = (_no_start, no_structure)
    needs: ClassVar[Needs] = (("input", "rms"), ("output", "rms"), ("param", "rms"))
    next_steps: ClassVar[tuple[str, ...]] = (
        "Use the initialisation that belongs to the activation: `kaiming_normal_` for ReLU, `xavier_uniform_` for tanh.",
        "Put a norm between the layers.",
    )
    source: ClassVar[str] = (
        "smdebug warns at a quotient of variances of 10, which fires on half of healthy trainings; the largest quotient of "
        "output and input in one was 11.7, and 2.8 in a recurrent layer with ReLU that starts as the identity"
    )
    consequence: ClassVar[str] = (
        "Signals that grow or fade by orders of magnitude give gradients that do the same, so that some layers do not learn."
    )
    false_alarm: ClassVar[str] = (
        "A norm that is applied inside a custom function can undo the scale unseen. The finding is a note until the loss shows "
        "harm."
    )

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        inputs, outputs, roles = evidence.track("input", "rms"), evidence.track("output", "rms"), roles_of(evidence)
        if inputs is None or outputs is None or roles is None:
            return
        after = _without_biases(evidence, outputs.names, starts(evidence, "output", "rms", outputs.names))
        gain = self._gains(evidence, roles, outputs.names, after)
        # The initialisation is at fault only as long as the output stays at least half as large as it began.
        stays = outputs.values > after / 2
        most = np.where(roles.have_role(outputs.names, ("recurrent",)), self.most_recurrent, self.most_gain)
        yield from symptoms_where(_with(outputs, gain), (gain > most) & stays, most, _gain)
        size = np.where(roles.have_role(outputs.names, ("embedding",)), after, np.nan)
        yield from symptoms_where(_with(outputs, size), (size > self.most_gain) & stays, self.most_gain, _embedding)
        reach = self._reach(evidence, roles, outputs.names, after)
        least = 1 / self.most_growth
        yield from symptoms_where(_with(outputs, reach), (reach > self.most_growth) & stays, self.most_growth, _reach_text)
        faded = (reach < least) & (outputs.values < 2 * after)
        yield from symptoms_where(_with(outputs, reach), faded, least, _reach_text)

    def _gains(self, evidence: Evidence, roles: Roles, names: tuple[str, ...], after: Array) -> Array:
        """The output of each layer over its input."""
        before = starts(evidence, "input", "rms", names)
        weights = [roles.weight(name) for name in names]
        rms = starts(evidence, "param", "rms", [each.name if each is not None else "" for each in weights])
        of_weights = rms * roots_of_fan_in(roles, names)
        is_judged = roles.have_role(names, WEIGHTED) & ~(of_weights < self.most_gain / 10)
        is_judged = (is_judged | roles.have_role(names, ("recurrent",))) & (before > 0)
        gains: Array = np.divide(after, before, out=np.full(len(names), np.nan), where=is_judged)
        return gains

    def _reach(self, evidence: Evidence, roles: Roles, names: tuple[str, ...], after: Array) -> Array:
        """The output of each layer that feeds another one, over that of the first layer of its row; NaN for all others."""
        outputs = dict(zip(names, after.tolist(), strict=True))
        inputs = dict(zip(names, starts(evidence, "input", "rms", names).tolist(), strict=True))
        reach: dict[str, float] = {}
        first = before = ""
        for name in evidence.order:
            role = roles.role(name)
            if role not in WEIGHTED:
                if role in ("norm", "embedding", "attention", "recurrent"):
                    first = before = ""
                continue
            size, source = inputs.get(name, np.nan), outputs.get(before, np.nan)
            # An input that was never finite has the size NaN, which fails both comparisons: it then counts as fed by `before`.
            is_fed = before != "" and source > 0 and not (size < source / LINK or size > source * LINK)
            if is_fed and first != before:
                reach[before] = source / outputs[first]
            first, before = (first, name) if is_fed else (name, name)
        return np.array([reach.get(name, np.nan) for name in names])


def _without_biases(evidence: Evidence, names: tuple[str, ...], after: Array) -> Array:
    """The first outputs of layers; NaN where most of it is the bias, as in a head that starts at the mean of its targets."""
    biases = starts(evidence, "param", "rms", [f"{name}.bias" for name in names])
    return np.where(biases > after / 2, np.nan, after)


def _with(track: Track, numbers: Array) -> Track:
    """A track whose measured cells all hold one number for each row."""
    return track._replace(values=np.where(np.isnan(track.values), np.nan, numbers))


def _gain(gain: float) -> str:
    return f"at the start the output was {gain:.3g} times as large as the input"


def _embedding(rms: float) -> str:
    return f"at the start the output had a root mean square of {rms:.3g}"


def _reach_text(reach: float) -> str:
    return f"at the start the output was {reach:.2g} times as large as that of the first layer before it"


@dataclass(frozen=True, kw_only=True)
class OddInitialization(HealthRule):
    """One of several equal layers starts with a weight far larger or smaller than its siblings, or with one number everywhere.

    Equal layers have the same class, a weight of the same shape, and names that differ in numbers only.

    Args:
        most: the largest usual quotient of a weight's root mean square and that of its siblings; also of the inverse.
        alike: the siblings are within this factor of their median, as fresh random weights are and trained ones are not.
    """

    most: float = 2.5
    alike: float = 1.25
    patience: int = 2
    family: ClassVar[str] = "activations"
    kind: ClassVar[Kind] = "pattern"
    obstacles: ClassVar[Obstacles] = (_no_start, no_structure)
    needs: ClassVar[Needs] = (("param", "rms"), ("param", "std"))
    next_steps: ClassVar[tuple[str, ...]] = (
        "Initialise the layer as its siblings: look for code that changes the weights of single layers.",
    )
    source: ClassVar[str] = "tried: fresh weights of equal layers differ by less than 1.25, so that 2.5 is no chance"
    consequence: ClassVar[str] = (
        "A layer that starts far larger or smaller than its siblings trains at another pace, and equal numbers give units that "
        "stay equal."
    )
    false_alarm: ClassVar[str] = (
        "Some designs scale single layers by depth or position on purpose. The finding is a note until the loss shows harm, "
        "except for one number everywhere."
    )

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        track, roles = evidence.track("param", "rms"), roles_of(evidence)
        if track is None or roles is None or not len(evidence.new_steps):
            return
        rms, std = starts(evidence, "param", "rms", track.names), starts(evidence, "param", "std", track.names)
        usual = self._usual(roles, track.names, rms)
        now = track.values / usual
        large = (rms > self.most * usual) & (now > self.most / 2)
        small = (rms < usual / self.most) & (now < 2 / self.most)
        share = _with(track, rms / usual)
        yield from symptoms_where(share, large, self.most, _odd)
        yield from symptoms_where(share, small, 1 / self.most, _odd)
        spread = np.divide(std, rms, out=np.full(len(rms), np.nan), where=rms > 0)
        constant = (spread < 1e-6) & _of_layers(roles, track.names) & ~_are_frozen(evidence, track.names)
        everywhere = np.broadcast_to(constant, track.values.shape)
        yield from symptoms_where(_with(track, spread), everywhere, 1e-6, _one_number, facts=constant)

    def _usual(self, roles: Roles, names: tuple[str, ...], rms: Array) -> Array:
        """The median of the siblings of each odd weight; NaN for all other weights."""
        usual = np.full(len(names), np.nan)
        for columns in _families(roles, names, rms):
            sizes = rms[columns]
            distance = np.abs(np.log(sizes / np.median(sizes)))
            is_odd = distance > np.log(self.most)
            if not is_odd.any() or is_odd.sum() * 3 > len(columns) or (distance[~is_odd] > np.log(self.alike)).any():
                continue
            root = roots_of_fan_in(roles, (roles.parameters[names[columns[0]]].module,))[0]
            odd_gain, other_gain = (np.median(sizes[each]) * root for each in (is_odd, ~is_odd))
            # If most of the equal layers are far from what any usual initialisation gives, then they are the odd ones.
            if abs(np.log(odd_gain)) < abs(np.log(other_gain)) and not _USUAL_GAIN[0] < other_gain < _USUAL_GAIN[1]:
                is_odd = ~is_odd
            usual[columns[is_odd]] = np.median(sizes[~is_odd])
        return usual


def _families(roles: Roles, names: tuple[str, ...], rms: Array) -> Iterator[np.ndarray]:
    """The columns of equal weights, at least three of them. Weights of zeros have no siblings."""
    for columns in roles.remember("equal weights", names, lambda: _alike(roles, names)):
        started = columns[rms[columns] > 0]
        if len(started) >= 3:
            yield started


def _alike(roles: Roles, names: tuple[str, ...]) -> list[np.ndarray]:
    """The columns of weights of one shape and place: their names differ in numbers only."""
    families: dict[object, list[int]] = {}
    for column, name in enumerate(names):
        parameter = roles.parameters.get(name)
        if parameter is not None and is_weight(parameter.shape):
            module = roles.modules.get(parameter.module)
            key = re.sub(r"\d+", "*", name), parameter.shape, module.type if module is not None else ""
            families.setdefault(key, []).append(column)
    return [np.array(columns) for columns in families.values()]


def _of_layers(roles: Roles, names: tuple[str, ...]) -> Mask:
    """Which parameters are weights of linear layers, convolutions or embeddings."""
    return roles.have_role(roles.owners(names), (*WEIGHTED, "embedding")) & roles.are_weights(names)


def _are_frozen(evidence: Evidence, names: tuple[str, ...]) -> Mask:
    frozen = evidence.facts.frozen if evidence.facts is not None else ()
    return np.array([name in frozen for name in names], dtype=np.bool_)


def _odd(times: float) -> str:
    return f"the weight started {times:.2g} times as large as those of equal layers"


def _one_number(_: float) -> str:
    return "all elements of the weight started with the same number, so that its units cannot differ"


@dataclass(frozen=True, kw_only=True)
class InputNotNormalised(HealthRule):
    """The input of the first layer is far from mean 0 and standard deviation 1, and no norm behind the layer removes its scale.

    In front of a norm over the units of each sample, such as LayerNorm, only the offset is judged, which such a norm keeps.
    An input that is too large and makes the first loss one of outputs that are sure of something is a fact: the outputs have
    learned nothing yet.

    Args:
        most: the largest usual root mean square.
        least: the smallest usual root mean square; that of an input of zeros is judged by `ZeroInput`.
        most_offset: the largest usual quotient of mean and standard deviation, for a mean above 3.
    """

    most: float = 30.0
    least: float = 1e-3
    most_offset: float = 10.0
    patience: int = 3
    family: ClassVar[str] = "activations"
    kind: ClassVar[Kind] = "pattern"
    obstacles: ClassVar[Obstacles] = (_no_start, no_structure)
    needs: ClassVar[Needs] = (("input", "rms"), ("input", "mean"), ("input", "std"))
    next_steps: ClassVar[tuple[str, ...]] = (
        "Subtract the mean of each feature of the training data, and divide by its standard deviation.",
    )
    source: ClassVar[str] = "pixels from 0 to 255 have a root mean square above 80, digits from 0 to 16, which train well, of 8"
    consequence: ClassVar[str] = (
        "Large inputs make the first gradients large in a few directions, so that a single learning rate does not fit all "
        "weights."
    )
    false_alarm: ClassVar[str] = (
        "Inputs whose scale is meant, such as counts in front of a logarithm in the model, are told too. The finding is a note "
        "until the loss shows harm."
    )

    def can_run(self, evidence: Evidence) -> str | None:
        reason = super().can_run(evidence)
        if reason is None and _first_layer(evidence) is None:
            return "the first layer is a norm, an embedding or in front of a norm over samples, or its input is not measured"
        return reason

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        rms, mean, std = (evidence.track("input", stat) for stat in ("rms", "mean", "std"))
        first = _first_layer(evidence)
        if rms is None or mean is None or std is None or first is None:
            return
        column, has_scale = first
        is_first = np.arange(len(rms.names)) == column
        is_large = (rms.values > self.most) & has_scale
        start = InitialLoss().start_above_chance(evidence)
        behind = "" if start is None else f"; {start.text}"
        are_facts = np.full(len(rms.names), start is not None)
        yield from symptoms_where(rms, is_large & is_first, self.most, lambda size: _size(size) + behind, facts=are_facts)
        is_small = (rms.values > 0) & (rms.values < self.least) & has_scale
        yield from symptoms_where(rms, is_small & is_first, self.least, _size)
        with np.errstate(invalid="ignore", divide="ignore"):
            offset = np.abs(mean.values) / std.values
        far = (offset > self.most_offset) & (np.abs(mean.values) > 3) & ~is_large & is_first
        yield from symptoms_where(mean._replace(values=offset), far, self.most_offset, _offset)


def _size(rms: float) -> str:
    return f"the input has a root mean square of {rms:.3g}"


def _offset(times: float) -> str:
    return f"the mean of the input is {times:.3g} times its standard deviation"


def _first_layer(evidence: Evidence) -> tuple[int, bool] | None:
    """The column of the first layer among the inputs, and whether no norm behind it removes the scale of its input.

    None if it looks up, if a norm stands in front of it or removes the offset of its input too, or if it is not measured.
    """
    roles, track = roles_of(evidence), evidence.track("input", "rms")
    if roles is None or track is None:
        return None
    leaves = [name for name in without_parametrizations(evidence.order) if roles.role(name) != "container"]
    for position, name in enumerate(leaves):
        role = roles.role(name)
        if role in ("norm", "embedding"):
            return None
        if role in (*WEIGHTED, "recurrent", "attention"):
            behind = leaves[min(position + 1, len(leaves) - 1)]
            has_scale = role not in WEIGHTED or roles.role(behind) != "norm"
            is_judged = has_scale or keeps_offset(roles.modules[behind].type)
            return (track.names.index(name), has_scale) if name in track.names and is_judged else None
    return None


RULES: Final[tuple[HealthRule, ...]] = (PoorInitialization(), OddInitialization(), InputNotNormalised())
"""The rules on the start, with their default thresholds."""
