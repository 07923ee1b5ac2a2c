"""The rule on the numbers that enter the first layer: far from mean 0 and standard deviation 1."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Final

import numpy as np

from lightning_hooks.health.evidence import Evidence
from lightning_hooks.health.roles import WEIGHTED, keeps_offset, percent, roles_of, without_parametrizations
from lightning_hooks.health.rule import HealthRule, Kind, Symptom, symptoms_where
from lightning_hooks.health.rules.base import Needs, Obstacles, no_start, no_structure
from lightning_hooks.health.rules.first_loss import InitialLoss


@dataclass(frozen=True, kw_only=True)
class InputNotNormalised(HealthRule):
    """The input of the first layer is far from mean 0 and standard deviation 1, and no norm behind the layer removes its scale.

    In front of a norm over the units of each sample, such as LayerNorm, only the offset is judged, which such a norm keeps.
    There are two facts. An input that is too large makes the first loss one of outputs that are sure of something, though they
    have learned nothing yet. And the units of the layer hardly vary from sample to sample, because an offset or the bias is
    nearly all that they hold. The second one is no fact of a small input above `least`: sparse counts are learned all the same.

    Args:
        most: the largest usual root mean square.
        least: the smallest usual root mean square; that of an input of zeros is judged by `ZeroInput`.
        most_offset: the largest usual quotient of mean and standard deviation, for a mean above 3.
        least_variation: the smallest usual variation of the units of the layer over the samples, as a share of their size.
        small: the root mean square below which an input is too small if the units vary by less.
    """

    most: float = 30.0
    least: float = 1e-3
    most_offset: float = 10.0
    least_variation: float = 0.15
    small: float = 0.03
    patience: int = 3
    family: ClassVar[str] = "activations"
    kind: ClassVar[Kind] = "pattern"
    obstacles: ClassVar[Obstacles] = (no_start, no_structure)
    needs: ClassVar[Needs] = (("input", "rms"), ("input", "mean"), ("input", "std"))
    next_steps: ClassVar[tuple[str, ...]] = (
        "Subtract the mean of each feature of the training data, and divide by its standard deviation.",
    )
    source: ClassVar[str] = (
        "pixels from 0 to 255 have a root mean square above 80, digits from 0 to 16, which train well, of 8; units of first "
        "layers of healthy trainings vary by 37 % of their size or more, by 9 % in one whose input is normalised"
    )
    consequence: ClassVar[str] = (
        "Large inputs make the first gradients large in a few directions, so that a single learning rate does not fit all "
        "weights."
    )
    false_alarm: ClassVar[str] = (
        "Inputs whose scale is meant, such as counts in front of a logarithm in the model, are told too. The finding is a note "
        "until the loss shows harm, unless the first loss or the units of the layer show what the input does to them."
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
        with np.errstate(invalid="ignore", divide="ignore"):
            offset = np.abs(mean.values) / std.values
        is_large = (rms.values > self.most) & has_scale
        is_far = (offset > self.most_offset) & (np.abs(mean.values) > 3) & ~is_large
        dull = self._dull_units(evidence, rms.names[column])
        is_small = (rms.values > 0) & (rms.values < (self.small if dull else self.least)) & has_scale
        start = InitialLoss().start_above_chance(evidence)
        strong = dull if start is None else start.text
        # Units that an input of this size hardly moves may still learn all of it, as those of sparse counts do.
        tiny = ~(rms.values >= self.least).any(axis=0)
        for condition, track, limit, text, behind, is_fact in (
            (is_large, rms, self.most, _size, strong, True),
            (is_small, rms, self.small if dull else self.least, _size, dull, tiny),
            (is_far, mean._replace(values=offset), self.most_offset, _offset, strong, True),
        ):
            facts = np.full(len(rms.names), bool(behind)) & is_fact
            yield from symptoms_where(track, condition & is_first, limit, partial(_said, text, behind), facts=facts)

    def _dull_units(self, evidence: Evidence, name: str) -> str:
        """What shows that the units of a layer hardly vary now; empty if they do, or if that is not known."""
        key = "output", "unit_variation"
        track = evidence.track(*key) if key in evidence.needs else None
        if track is None or name not in track.names:
            return ""
        column = track.names.index(name)
        known = track.values[np.isfinite(track.values[:, column]), column]
        if not len(known) or not float(known[-1]) < self.least_variation:
            return ""
        return f"the units of the layer vary by only {percent(float(known[-1]))} of their size from sample to sample"


def _size(rms: float) -> str:
    return f"the input has a root mean square of {rms:.3g}"


def _offset(times: float) -> str:
    return f"the mean of the input is {times:.3g} times its standard deviation"


def _said(text: Callable[[float], str], behind: str, value: float) -> str:
    return f"{text(value)}; {behind}" if behind else text(value)


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


RULES: Final[tuple[HealthRule, ...]] = (InputNotNormalised(),)
"""The rule on inputs, with its default thresholds."""
