"""Rules on the first steps: weights that start too large, too small or unlike their siblings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
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
    roles_of,
    starts,
)
from lightning_hooks.health.rule import HealthRule, Kind, Symptom, symptoms_where
from lightning_hooks.health.rules.base import Needs, Obstacles, no_start, no_structure
from lightning_hooks.health.track import Track

_USUAL_GAIN: Final = (0.2, 3.0)
"""The root mean square of a weight times the root of its fan-in: 0.58 by default in torch, 1.4 after `kaiming_normal_`."""


@dataclass(frozen=True, kw_only=True)
class PoorInitialization(HealthRule):
    """A layer makes its input far larger at the start, or a row of layers makes it fade or grow by orders of magnitude.

    So does an embedding of positions beside that of tokens. It is known by its output, which has the same width, no other layer
    in between and a part of the elements: it is added to that of each sample, so that the smaller one is lost in the larger.

    Args:
        most_gain: the largest usual quotient of output and input of one layer, and the largest usual output of an embedding.
        most_recurrent: the largest usual quotient of output and input of a recurrent layer. Gates and tanh keep it below 1 for
            usual inputs, and a state that grows from step to step has gradients that grow likewise.
        most_growth: the largest usual growth from the first to the last layer of a row without norms; also its least decay.
        most_unlike: the largest usual quotient of the outputs of two such embeddings; also of the inverse.
    """

    most_gain: float = 30.0
    most_recurrent: float = 10.0
    most_growth: float = 1000.0
    most_unlike: float = 20.0
    patience: int = 2
    family: ClassVar[str] = "activations"
    kind: ClassVar[Kind] = "pattern"
    obstacles: ClassVar[Obstacles] = (no_start, no_structure)
    needs: ClassVar[Needs] = (("input", "rms"), ("output", "rms"), ("output", "count"), ("param", "rms"))
    next_steps: ClassVar[tuple[str, ...]] = (
        "Use the initialisation that belongs to the activation: `kaiming_normal_` for ReLU, `xavier_uniform_` for tanh.",
        "Put a norm between the layers.",
        "Let embeddings that are added begin with weights of one size.",
    )
    source: ClassVar[str] = (
        "smdebug warns at a quotient of variances of 10, which fires on half of healthy trainings; the largest quotient of "
        "output and input in one was 11.7, and 2.8 in a recurrent layer with ReLU that starts as the identity; embeddings of "
        "one width differ by a factor of 2 at most"
    )
    consequence: ClassVar[str] = (
        "Signals that grow or fade by orders of magnitude give gradients that do the same, so that some layers do not learn."
    )
    false_alarm: ClassVar[str] = (
        "A norm that is applied inside a custom function can undo the scale unseen. The finding is a note until the loss shows "
        "harm, except for embeddings that are added."
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
        yield from self._unlike(evidence, roles, outputs)

    def _unlike(self, evidence: Evidence, roles: Roles, outputs: Track) -> Iterator[Symptom]:
        """The symptoms of embeddings that are added to others of another size.

        If the output of the other one is larger than is usual, it is at fault.
        """
        for pair in _added(evidence, roles, outputs.names):
            if starts(evidence, "output", "rms", pair[1:])[0] > self.most_gain:
                pair = pair[::-1]
            with np.errstate(invalid="ignore", divide="ignore"):
                small, large = starts(evidence, "output", "rms", pair)
                first, now = small / large, np.divide(*outputs.values[:, [outputs.names.index(name) for name in pair]].T)
            one, is_fact = outputs._replace(names=pair[:1], values=now[:, None]), np.ones(1, dtype=np.bool_)
            most, text = self.most_unlike, partial(_added_to, pair[1])
            if first > most:
                yield from symptoms_where(one, one.values > most, most, text, facts=is_fact)
            elif first < 1 / most:
                yield from symptoms_where(one, one.values < 1 / most, 1 / most, text, facts=is_fact)

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


def _added(evidence: Evidence, roles: Roles, names: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The embeddings whose outputs can be broadcast over the samples of that of another one, each with this other one."""
    counts = evidence.track("output", "count")
    if counts is None or not len(counts.values):
        return []
    weighted = [name for name in evidence.order if roles.role(name) in (*WEIGHTED, "embedding", "recurrent", "attention")]
    found: list[tuple[str, ...]] = []
    for pair in pairwise(weighted):
        weights = [roles.weight(name) for name in pair]
        if any(roles.role(name) != "embedding" or name not in names for name in pair) or None in weights:
            continue
        widths = {each.shape[1:] for each in weights if each is not None}
        sizes = [float(starts(evidence, "output", "count", (name,))[0]) for name in pair]
        small, large = sorted((0, 1), key=lambda i: sizes[i])
        if len(widths) == 1 and sizes[small] > 0 and sizes[large] / sizes[small] >= 2 and sizes[large] % sizes[small] == 0:
            found.append((pair[small], pair[large]))
    return found


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


def _added_to(other: str, times: float) -> str:
    return f"the output is {times:.3g} times as large as that of {other}, to which its shape lets it be added"


def _reach_text(reach: float) -> str:
    return f"at the start the output was {reach:.2g} times as large as that of the first layer before it"


@dataclass(frozen=True, kw_only=True)
class OddInitialization(HealthRule):
    """One of several equal layers starts with a weight far larger or smaller than its siblings, or with one number everywhere.

    Equal layers have the same class, a weight of the same shape, and names that differ in numbers only. The weight from a time
    step to the next one, which no usual initialisation starts with a gain above 2, is compared with that of its inputs.

    Args:
        most: the largest usual quotient of a weight's root mean square and that of its siblings; also of the inverse.
        alike: the siblings are within this factor of their median, as fresh random weights are and trained ones are not.
        most_recurrent: the largest usual gain of a recurrent weight: its root mean square times the root of its inputs.
        most_of_inputs: the largest usual quotient of the root mean squares of a recurrent weight and of that of its inputs.
    """

    most: float = 2.5
    alike: float = 1.25
    most_recurrent: float = 4.0
    most_of_inputs: float = 4.0
    patience: int = 2
    family: ClassVar[str] = "activations"
    kind: ClassVar[Kind] = "pattern"
    obstacles: ClassVar[Obstacles] = (no_start, no_structure)
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
        gain = self._recurrent(roles, track.names, rms)
        amplifies = gain > self.most_recurrent
        still = (track.values > rms / 2) & amplifies
        yield from symptoms_where(_with(track, gain), still, self.most_recurrent, _recurrent, facts=amplifies)

    def _recurrent(self, roles: Roles, names: tuple[str, ...], rms: Array) -> Array:
        """The gain of each recurrent weight that started far larger than that of its inputs; NaN for all other weights."""
        gains, sizes = np.full(len(names), np.nan), dict(zip(names, rms.tolist(), strict=True))
        for column, name in enumerate(names):
            size, of_inputs = sizes[name], sizes.get(name.replace("weight_hh", "weight_ih"), np.nan)
            if "weight_hh" in name and name in roles.parameters and size > self.most_of_inputs * of_inputs > 0:
                gains[column] = size * roles.parameters[name].shape[-1] ** 0.5
        return gains

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


def _recurrent(gain: float) -> str:
    return f"the weight from a time step to the next one started with a gain of {gain:.3g}, where 1 keeps a state at its size"


def _one_number(_: float) -> str:
    return "all elements of the weight started with the same number, so that its units cannot differ"


RULES: Final[tuple[HealthRule, ...]] = (PoorInitialization(), OddInitialization())
"""The rules on the start, with their default thresholds."""
