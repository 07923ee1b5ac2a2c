"""Rules on gradients: spikes, explosion, vanishing, and gradients that are never set to zero."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from lightning_hooks.health.evidence import Evidence, Track
from lightning_hooks.health.roles import Array, Mask, known_median, roles_of, starts
from lightning_hooks.health.rule import Sign, signs_where
from lightning_hooks.health.rules.base import WITNESS, Needs, StructureRule


def _weights(evidence: Evidence, track: Track) -> Mask:
    """Which rows are weights: a bias in front of a norm has no gradient by mathematics."""
    roles = roles_of(evidence)
    return np.zeros(len(track.names), dtype=np.bool_) if roles is None else roles.are_weights(track.names)


@dataclass(frozen=True, kw_only=True)
class _GradientRule(StructureRule):
    """A rule on the gradients of weights."""

    family: ClassVar[str] = "gradients"
    needs: ClassVar[Needs] = (("grad", "norm"),)


@dataclass(frozen=True, kw_only=True)
class GradientSpike(_GradientRule):
    """The gradient of a weight is far above those before: by the deviation of its logarithm, and by the largest of them.

    Args:
        sigmas: how many standard deviations of the logarithm above its mean.
        times: the multiple of the largest of the steps before.
        window: the number of these steps.
        least: the number of measured steps before the rule judges.
    """

    sigmas: float = 6.0
    times: float = 5.0
    window: int = 128
    least: int = 40
    patience: int = 1
    every: int = 5
    next_steps: ClassVar[tuple[str, ...]] = (
        "Look at the batch of this step, and at the loss: a spike of both is a bad batch.",
        "Clip the norm of the gradient.",
    )
    source: ClassVar[str] = (
        "OLMo-core: 6 σ of 128; alone it fires on healthy trainings, with 5 × the largest of them it does not"
    )

    def check(self, evidence: Evidence) -> Iterable[Sign]:
        """As of `HealthRule`."""
        track = evidence.track("grad", "norm")
        if track is None:
            return
        values = np.where(np.isfinite(track.values) & _weights(evidence, track), track.values, np.nan)
        for i in range(max(track.new.start, self.least), track.new.stop):
            last = values[max(0, i - self.window) : i]
            largest = np.fmax.reduce(last, axis=0)
            with np.errstate(invalid="ignore"):
                candidates = np.flatnonzero(values[i] > self.times * largest)
            for column in candidates.tolist():
                known = last[:, column]
                logs = np.log(known[known > 0])
                if len(logs) < self.least or largest[column] <= 0:
                    continue
                value, limit = float(values[i, column]), self.times * float(largest[column])
                if np.log(value) > logs.mean() + self.sigmas * logs.std():
                    text = (
                        f"the gradient jumps to {value:.3g}; the largest of {len(logs)} steps before was {largest[column]:.3g}"
                    )
                    yield Sign(track.names[column], "grad", int(track.steps[i]), value, limit, text)


@dataclass(frozen=True, kw_only=True)
class ExplodingGradient(_GradientRule):
    """The gradient of a weight has grown to a large multiple of its early level, and so has the whole gradient.

    Or the gradients of the first steps are already far larger than the weights themselves, and the loss does not fall.

    Args:
        times: the multiple of the early level (the median of the row's measurements 5 to 24).
        from_start: the multiple of the norm of the weight.
    """

    times: float = 50.0
    from_start: float = 1e3
    patience: int = 10
    every: int = 5
    needs: ClassVar[Needs] = (("grad", "norm"), ("param", "norm"))
    next_steps: ClassVar[tuple[str, ...]] = (
        "Clip the norm of the gradient, and lower the learning rate.",
        "In a recurrent network, scale the recurrent weights down or truncate the backward pass.",
    )
    source: ClassVar[str] = (
        "AutoTrainer's ratio of 70 between layers fires on healthy trainings; 50 × the early level for ten steps did not"
    )

    def check(self, evidence: Evidence) -> Iterable[Sign]:
        """As of `HealthRule`."""
        track, early = evidence.track("grad", "norm"), evidence.early("grad", "norm")
        if track is None or early is None or not track.new.stop > track.new.start:
            return
        weights = _weights(evidence, track)
        values = np.where(weights, track.values, np.nan)
        grown = track._replace(values=values)
        with np.errstate(invalid="ignore", over="ignore"):
            whole = np.sqrt(np.nansum(np.square(values), axis=1))
            whole_early = float(np.sqrt(np.nansum(np.square(early[weights]))))
            holds = (values > self.times * early) & (early > 0) & (whole > self.times * whole_early)[:, None]
        yield from signs_where(grown, holds, self.times * early, lambda value: f"the gradient has grown to {value:.3g}")
        if evidence.loss_falls(WITNESS) is False:
            start = starts(evidence, "param", "norm", track.names)
            with np.errstate(invalid="ignore"):
                huge = (values > self.from_start * start) & (start > 0) & (early > self.from_start * start)
            yield from signs_where(grown, huge & ~holds, self.from_start * start, _huge, huge)


def _huge(norm: float) -> str:
    return f"the gradient ({norm:.3g}) has been far larger than the weight from the start on, and the loss does not fall"


@dataclass(frozen=True, kw_only=True)
class VanishingGradient(_GradientRule):
    """The gradient of a weight is a tiny share of that of another weight, element by element.

    A gradient of exactly 0 is `NoGradient`. Embeddings are left out, and weights that start at 0 (LoRA).

    Args:
        least: the share of the largest root mean square of all weights.
    """

    least: float = 1e-4
    patience: int = 30
    every: int = 5
    needs: ClassVar[Needs] = (("grad", "rms"), ("param", "rms"))
    next_steps: ClassVar[tuple[str, ...]] = (
        "Replace sigmoid and tanh between the layers by ReLU or GELU, or add residual connections and norms.",
        "Look at the initial weights of the layers behind it.",
    )
    source: ClassVar[str] = (
        "AutoTrainer: first over last layer below 1e-3; absolute thresholds (1e-6, 1e-7) fire on healthy trainings; 1e-4 of "
        "the largest for 30 measured steps: ours"
    )

    def check(self, evidence: Evidence) -> Iterable[Sign]:
        """As of `HealthRule`."""
        track, roles = evidence.track("grad", "rms"), roles_of(evidence)
        if track is None or roles is None:
            return ()
        owners = tuple(roles.parameters[name].module if name in roles.parameters else "" for name in track.names)
        weights = roles.are_weights(track.names) & ~roles.have_role(owners, ("embedding",))
        start = starts(evidence, "param", "rms", track.names)
        weights &= ~(start < 1e-3 * known_median(start[weights]))
        with np.errstate(invalid="ignore", divide="ignore"):
            largest = np.fmax.reduce(np.where(weights, track.values, np.nan), axis=1, initial=-np.inf)
            share = np.where(weights & (track.values > 0), track.values / largest[:, None], np.nan)
            holds = share < self.least
        return signs_where(track._replace(values=share), holds, self.least, _tiny)


def _tiny(share: float) -> str:
    return f"the gradient is {share:.2g} of that of the weight with the largest, element by element"


@dataclass(frozen=True, kw_only=True)
class GradientsRepeat(_GradientRule):
    """Each gradient is nearly the one before, and gradients grow: they seem to add up from step to step.

    The means of the gradients of all weights, each divided by its root mean square, are a sketch of the direction of the
    gradient. Data that hardly changes also repeats the direction; then the gradient does not grow.

    Args:
        cosine: between the sketches of successive steps.
        growth: of the whole gradient over its early level.
        least: the number of weights that the sketch needs.
        steps: the number of steps in a row at which the gradient repeats.
    """

    cosine: float = 0.9
    growth: float = 3.0
    least: int = 6
    steps: int = 15
    patience: int = 1
    every: int = 5
    needs: ClassVar[Needs] = (("grad", "norm"), ("grad", "mean"), ("grad", "rms"))
    next_steps: ClassVar[tuple[str, ...]] = (
        "Call `optimizer.zero_grad()` before each backward pass, or once in each accumulation.",
    )
    source: ClassVar[str] = "ours"

    def can_run(self, evidence: Evidence) -> str | None:
        """As of `HealthRule`."""
        reason, track = super().can_run(evidence), evidence.track("grad", "norm")
        if reason is None and track is not None and int(_weights(evidence, track).sum()) < self.least:
            return f"there are fewer than {self.least} weights"
        return reason

    def check(self, evidence: Evidence) -> Iterable[Sign]:
        """As of `HealthRule`."""
        norm, mean, rms = (evidence.track("grad", stat) for stat in ("norm", "mean", "rms"))
        early = evidence.early("grad", "norm")
        if norm is None or mean is None or rms is None or early is None or len(norm.steps) < 2:
            return
        weights = _weights(evidence, norm)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            sketch = np.where(weights & (rms.values > 0), mean.values / rms.values * (norm.values / rms.values), 0.0)
            whole = np.sqrt(np.nansum(np.square(norm.values[:, weights]), axis=1))
            growth = whole / float(np.sqrt(np.nansum(np.square(early[weights]))))
            similar = _cosines(sketch)
            repeats = similar > self.cosine
        for i in range(max(norm.new.start, self.steps), norm.new.stop):
            if growth[i] > self.growth and repeats[i - self.steps + 1 : i + 1].all():
                text = (
                    f"the gradient has grown {growth[i]:.3g} times and hardly turns from step to step (cosine {similar[i]:.2f})"
                )
                yield Sign("", "", int(norm.steps[i]), float(growth[i]), self.growth, text)


def _cosines(sketch: Array) -> Array:
    """The cosine of each line and the one before, float64 [window]; NaN for the first."""
    products = (sketch[1:] * sketch[:-1]).sum(axis=1)
    norms = np.linalg.norm(sketch, axis=1)
    return np.concatenate([[np.nan], products / (norms[1:] * norms[:-1])])


RULES: Final = (GradientSpike(), ExplodingGradient(), VanishingGradient(), GradientsRepeat())
"""The rules on gradients, with their defaults."""
