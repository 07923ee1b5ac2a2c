"""Rules on the range and resolution of number formats: gradients below float16, updates that change nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from lightning_hooks.comparing.exact import columns_of
from lightning_hooks.health.evidence import Evidence
from lightning_hooks.health.roles import Array, Mask, percent, roles_of
from lightning_hooks.health.rule import HealthRule, Kind, Symptom, symptoms_where
from lightning_hooks.health.rules.base import WITNESS, Needs, Obstacles, no_loss, no_structure
from lightning_hooks.health.usage import groups_of

_SMALLEST: Final = 2.0**-14
"""The smallest normal number of float16; smaller ones lose digits, and below 6e-8 they are 0."""


@dataclass(frozen=True, kw_only=True)
class Underflow(HealthRule):
    """The whole gradient of a float16 tensor is below the smallest normal number of float16, or is 0 for this reason.

    A gradient of exactly 0 counts only where a gradient of another row is below the range and not 0.

    Args:
        smallest: the smallest magnitude that float16 holds with all its digits.
    """

    smallest: float = _SMALLEST
    patience: int = 10
    every_n_steps: int = 20
    family: ClassVar[str] = "numerics"
    kind: ClassVar[Kind] = "pattern"
    obstacles: ClassVar[Obstacles] = (no_structure,)
    needs: ClassVar[Needs] = (("grad", "abs_max"),)
    next_steps: ClassVar[tuple[str, ...]] = (
        "Train in bfloat16, whose range is that of float32.",
        "Use a loss scaler (precision 16-mixed), and do not divide the loss by a large number.",
    )
    source: ClassVar[str] = "the format: 2^-14 is the smallest normal float16; TransformerEngine counts elements below it"
    consequence: ClassVar[str] = (
        "A gradient below the range of float16 is rounded to a few digits or to 0, so that its weight is not trained."
    )
    false_alarm: ClassVar[str] = (
        "A weight whose true gradient is tiny, because all is learned, looks the same. The finding is a note until the loss "
        "shows harm."
    )

    def can_run(self, evidence: Evidence) -> str | None:
        reason = super().can_run(evidence)
        return reason or (None if self._half(evidence).any() else "no parameter is computed in float16")

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        track, half = evidence.track("grad", "abs_max"), self._half(evidence)
        if track is None or not half.any():
            return ()
        scaled = track.values * _scales(evidence, track.steps.tolist())[:, None]
        with np.errstate(invalid="ignore"):
            small: Mask = half & (scaled < self.smallest)
            # A dead layer also has gradients of 0.
            # Count a 0 only if another gradient of the step is below the range but above 0.
            is_near = np.any(small & (scaled > 0), axis=1)[:, None]
        text = "the largest element of the gradient, times the loss scale, is {:.2g}"
        return symptoms_where(
            track._replace(values=scaled), small & ((scaled > 0) | is_near), self.smallest, lambda value: text.format(value)
        )

    def _half(self, evidence: Evidence) -> Mask:
        """Which rows of `grad` are weights whose gradient is computed in float16."""
        track, roles = evidence.track("grad", "abs_max"), roles_of(evidence)
        if track is None or roles is None:
            return np.zeros(0, dtype=np.bool_)
        weights = roles.are_weights(track.names)
        if evidence.facts is not None and evidence.facts.precision == "16-mixed":
            return weights
        dtypes = [roles.parameters[name].dtype if name in roles.parameters else "" for name in track.names]
        half: Mask = weights & np.array([dtype == "float16" for dtype in dtypes], dtype=np.bool_)
        return half


def _scales(evidence: Evidence, steps: list[int]) -> Array:
    found = [facts.loss_scale if (facts := evidence.facts_at(step)) is not None else None for step in steps]
    return np.array([1.0 if scale is None else scale for scale in found])


@dataclass(frozen=True, kw_only=True)
class LostUpdates(HealthRule):
    """Most elements of a weight stay as they are although they have a gradient, and the loss does not fall.

    Args:
        most: the share of elements with a gradient that may stay bit-equal.
    """

    most: float = 0.5
    patience: int = 10
    warmup: int = 10
    every_n_steps: int = 20
    family: ClassVar[str] = "numerics"
    kind: ClassVar[Kind] = "pattern"
    obstacles: ClassVar[Obstacles] = (no_loss, no_structure)
    needs: ClassVar[Needs] = (("update", "zero_fraction"), ("grad", "zero_fraction"))
    next_steps: ClassVar[tuple[str, ...]] = (
        "Keep the weights in float32 (precision bf16-mixed instead of bf16-true), or round stochastically.",
        "If the weights are in float32, raise the learning rate: updates are below the resolution of the format.",
    )
    source: ClassVar[str] = (
        "ours: half the elements; in bfloat16 that is usual in healthy training, hence the loss as second witness"
    )
    consequence: ClassVar[str] = (
        "The optimizer computes updates that vanish in the rounding of the weight, so that most elements stay where they are."
    )
    false_alarm: ClassVar[str] = (
        "In bfloat16 many lost updates are usual in healthy training. The rule needs a loss that does not fall as its second "
        "witness."
    )

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        update, grad, roles = evidence.track(*self.needs[0]), evidence.track(*self.needs[1]), roles_of(evidence)
        if update is None or grad is None or roles is None or evidence.loss_falls(WITNESS) is not False:
            return ()
        columns = columns_of(grad.names, update.names)
        zeros = np.where(columns >= 0, grad.values[:, columns], np.nan)
        with np.errstate(invalid="ignore", divide="ignore"):
            # The share of elements that the step left unchanged, among those whose gradient is not 0.
            lost = np.where(zeros < 1, (update.values - zeros) / (1 - zeros), np.nan)
            holds = roles.are_weights(update.names) & (lost > self.most) & _has_rate(evidence, update.names)
        return symptoms_where(update._replace(values=lost), holds, self.most, _lost, holds, before=percent)


def _lost(share: float) -> str:
    return f"the step changes no bit of {percent(share)} of the elements that have a gradient, and the loss does not fall"


def _has_rate(evidence: Evidence, names: tuple[str, ...]) -> Mask:
    """Which parameters have a learning rate above 0, as far as anybody knows."""
    still = {name for group in groups_of(evidence.facts) if group.lr == 0 for name in group.params}
    return np.array([name not in still for name in names], dtype=np.bool_)


RULES: Final[tuple[HealthRule, ...]] = (Underflow(), LostUpdates())
"""The rules on numerics, with their defaults."""
