"""The rule on noise that code adds to gradients between the backward pass and the step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from lightning_hooks.comparing.exact import columns_of
from lightning_hooks.health.evidence import Evidence
from lightning_hooks.health.roles import Array, medians
from lightning_hooks.health.rule import HealthRule, Kind, Symptom
from lightning_hooks.health.rules.base import Needs, Obstacles, no_optimizer
from lightning_hooks.health.track import Track

_EULER: Final = 0.5772  # the mean of a Gumbel distribution


@dataclass(frozen=True, kw_only=True)
class GradientsNoisy(HealthRule):
    """The optimizer steps with gradients most of which is noise that code has added after the backward pass.

    The gradient right before the step is a multiple of that of the backward pass, its elements have another distribution, and
    its largest element is as large as the largest of so many normally distributed numbers. A factor leaves the distribution as
    it is, and a preconditioner makes no normal one. The median of the weights counts.

    Args:
        least: the multiple of the gradient of the backward pass.
        change: the smallest relative change of the largest element as a multiple of the root mean square.
        normal: the largest relative distance of that multiple from the one of normally distributed numbers.
        elements: the smallest number of elements of a parameter that is judged.
        measured: the number of steps in a row, as far as they are measured, at which it must be so.
    """

    least: float = 2.0
    change: float = 0.02
    normal: float = 0.25
    elements: int = 64
    measured: int = 3
    patience: int = 1
    every_n_steps: int = 10
    family: ClassVar[str] = "gradients"
    kind: ClassVar[Kind] = "pattern"
    obstacles: ClassVar[Obstacles] = (no_optimizer,)
    needs: ClassVar[Needs] = (
        ("grad", "rms"),
        ("grad", "abs_max"),
        ("final_grad", "rms"),
        ("final_grad", "abs_max"),
        ("final_grad", "count"),
    )
    next_steps: ClassVar[tuple[str, ...]] = (
        "Search for code that adds random numbers to `.grad` between `backward()` and `step()`.",
        "If the noise is meant, for privacy or for sampling, make it smaller, or take larger batches.",
    )
    source: ClassVar[str] = (
        "the largest of n normal numbers is about sqrt(2 ln n) standard deviations; at three measured steps: ours. In healthy "
        "drawn trainings nothing makes gradients 1.2 times as large before the step"
    )
    consequence: ClassVar[str] = "Steps go in random directions, and the gradient only shows in the mean of very many of them."
    false_alarm: ClassVar[str] = (
        "Differential privacy and Langevin dynamics add such noise on purpose. The finding is a note until the loss shows "
        "harm; accept it there, and look at how large the noise is."
    )

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        tracks = [track for need in self.needs if (track := evidence.track(*need)) is not None]
        if len(tracks) < len(self.needs) or not np.isfinite(tracks[2].values[tracks[2].new]).any():
            return
        factors, changes, normal = self._compared(*tracks)
        final = tracks[2]
        is_measured = np.isfinite(factors)
        is_noise = (factors >= self.least) & (changes >= self.change) & (np.abs(normal - 1) <= self.normal)
        known = np.flatnonzero(is_measured)
        for position, at in enumerate(known.tolist()):
            last = known[max(0, position + 1 - self.measured) : position + 1]
            if at < final.new.start or len(last) < self.measured or not is_noise[last].all():
                continue
            text = (
                f"right before the step gradients are {factors[at]:.3g} times as large as those of the backward pass, and "
                f"their largest elements are those of normally distributed noise"
            )
            step, since = int(final.steps[at]), int(final.steps[last[0]])
            yield Symptom(
                "", tensor="final_grad", step=step, measured=factors[at], threshold=self.least, text=text, since=since
            )

    def _compared(self, rms: Track, largest: Track, final: Track, final_largest: Track, count: Track) -> tuple[Array, ...]:
        """How much larger the gradient of the median weight is, and how its largest element differs, float64 [window] each.

        The latter is compared with that of the backward pass, and with that of normally distributed numbers.
        """
        columns = columns_of(rms.names, final.names)
        before, before_largest = (np.where(columns >= 0, each.values[:, columns], np.nan) for each in (rms, largest))
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            peak, peak_before = final_largest.values / final.values, before_largest / before
            judged = (count.values >= self.elements) & np.isfinite(peak) & np.isfinite(peak_before) & (before > 0)
            of_weights = (
                final.values / before,
                np.abs(peak / peak_before - 1),
                peak / _largest_of_normal(np.maximum(count.values, self.elements)),
            )
        return tuple(medians(np.where(judged, each, np.nan)) for each in of_weights)


def _largest_of_normal(count: Array) -> Array:
    """The mean of the largest size among so many normally distributed numbers, in standard deviations."""
    root = np.sqrt(2 * np.log(2 * count))
    largest: Array = root - (np.log(np.log(2 * count)) + np.log(4 * np.pi)) / (2 * root) + _EULER / root
    return largest


RULES: Final[tuple[HealthRule, ...]] = (GradientsNoisy(),)
"""The rule on noise in gradients, with its defaults."""
