"""The rule that compares numbers with the bands of good runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.comparing.bands import EARLY, SHARE, Bands
from lightning_hooks.comparing.exact import columns_of
from lightning_hooks.health.evidence import LOSS, Evidence, Track
from lightning_hooks.health.reference.reference import BAND_KEYS
from lightning_hooks.health.reference.rule import ReferenceRule, first_run
from lightning_hooks.health.roles import Mask, roles_of
from lightning_hooks.health.rule import Symptom
from lightning_hooks.health.rules.base import Needs
from lightning_hooks.health.window import Array, Key

ALONE: Final[Mapping[Key, float]] = {
    LOSS: 10.0,
    ("input", "rms"): 10.0,
    ("input", SHARE): 3.0,
    ("output", "rms"): 10.0,
    ("output", SHARE): 3.0,
    ("grad", "norm"): 5.0,
    ("param", "norm"): 2.0,
    ("update", "norm"): 5.0,
}
"""The factor between a number and its band from which on a single row counts."""
DATA: Final[Mapping[Key, float]] = {("input", "rms"): 1.5, ("input", SHARE): 1.25}
"""The same for the input of the module that runs first: the data, which training does not change."""
_TOGETHER: Final = (("grad", "norm"), ("output", "rms"))
_EARLY_LOSS: Final = 3.0  # the factor of a loss alone in the first steps
_WITH_GRADIENTS: Final = 1.5  # the factor of a loss if most gradients are outside in the same direction
_FEWEST: Final = 4  # rows that a tensor must have so that most of them say something


@dataclass(frozen=True, kw_only=True)
class ReferenceNumbers(ReferenceRule):
    """A statistic is far outside of the band of the good run: at one row by a large factor, or at most rows in one direction.

    Biases and other vectors do not count alone, because their norms differ from seed to seed, and neither do experts.

    Args:
        tolerance: multiplies the logarithm of each factor; 2 means that 10 becomes 100.
        together: the factor at most rows together.
        share: the share of the rows of a tensor that are most rows.
        sigmas: how many standard deviations of its own noise a number must be outside, at the least.
    """

    patience: int = 3
    tolerance: float = 1.0
    together: float = 2.0
    share: float = 0.8
    sigmas: float = 6.0
    family: ClassVar[str] = "numerics"
    needs: ClassVar[Needs] = BAND_KEYS
    source: ClassVar[str] = "tried: of healthy trainings that differ in their seed, no number leaves its band by half as much"

    def can_run(self, evidence: Evidence) -> str | None:
        if any(key in self.reference.bands and evidence.has(*key) for key in self.needs):
            return None
        return "this run and the good run have no row in common"

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        outside: dict[Key, _Outside] = {}
        for key in self.needs:
            bands, track = self.reference.bands.get(key), evidence.track(*key)
            if bands is not None and track is not None and len(track.steps[track.new]):
                outside[key] = _Outside.of(bands, track, self.reference.last, self.sigmas)
        for key, each in outside.items():
            holds = self._alone(key, each, evidence)
            if key in _TOGETHER:
                holds |= self._most(each)
            if key == LOSS and ("grad", "norm") in outside:
                # A loss that is scaled scales all gradients.
                near = np.abs(each.logs) > self.tolerance * np.log(_WITH_GRADIENTS)
                holds |= near & self._has_most(outside["grad", "norm"], each)
            for line, row in np.argwhere(holds).tolist():
                yield self._symptom(each, line, row)

    def _alone(self, key: Key, each: _Outside, evidence: Evidence) -> Mask:
        factors = np.full(each.logs.shape, ALONE[key])
        if key in DATA and (first := first_run(evidence, each.track)) in each.bands.names:
            factors[:, each.bands.names.index(first)] = DATA[key]
        if key == LOSS:
            factors[each.steps < EARLY] = _EARLY_LOSS
            # After the early steps, ignore a lower loss: this run may simply have learned more than the good run.
            factors[(each.steps >= EARLY)[:, None] & (each.logs < 0)] = np.inf
        holds: Mask = np.abs(each.logs) > np.maximum(self.tolerance * np.log(factors), each.slack)
        roles = roles_of(evidence)
        if key[0] in ("param", "grad", "update"):
            # An expert may get hardly any data, so its gradient says little.
            names = each.bands.names
            holds &= False if roles is None else roles.are_weights(names) & ~roles.are_experts(names)
        return holds

    def _most(self, each: _Outside) -> Mask:
        """Which rows are outside in the direction in which most rows are, bool [steps, rows]."""
        holds = np.abs(each.logs) > self.tolerance * np.log(self.together)
        known = np.isfinite(each.logs).sum(axis=1, keepdims=True)
        least = np.maximum(_FEWEST, self.share * known)
        above, below = holds & (each.logs > 0), holds & (each.logs < 0)
        most: Mask = (above & (above.sum(axis=1, keepdims=True) >= least)) | (
            below & (below.sum(axis=1, keepdims=True) >= least)
        )
        return most

    def _has_most(self, grads: _Outside, loss: _Outside) -> Mask:
        """Whether most gradients are outside in the direction of the loss, bool [steps, 1]."""
        most = self._most(grads)
        same: Mask = (most & (np.sign(grads.logs) == np.sign(loss.logs))).any(axis=1, keepdims=True)
        return same

    def _symptom(self, each: _Outside, line: int, row: int) -> Symptom:
        tensor, stat = each.bands.key
        value, is_above = float(each.values[line, row]), bool(each.logs[line, row] > 0)
        low, high = (each.bands.value(float(edge[line, row])) for edge in (each.low, each.high))
        what = "it" if each.bands.key == LOSS else f"the {stat} of its {tensor}"
        side = f"{'above' if is_above else 'below'} the {low:.3g} to {high:.3g}"
        text = f"{what} is {value:.3g}, {side} that it had {self.good} around this step"
        # The row of the loss keeps its name, so that the steps at which the loss is inside of its band are counted.
        return Symptom(
            each.bands.names[row],
            tensor=tensor,
            step=int(each.steps[line]),
            measured=value,
            threshold=high if is_above else low,
            text=text,
        )


@dataclass(frozen=True, eq=False)
class _Outside:
    """How far the numbers of one statistic are outside of their bands at the new steps.

    Args:
        bands: the bands.
        track: of the run.
        steps: the new steps, int64 [steps].
        values: float64 [steps, rows].
        low: the lower edges, as logarithms, likewise.
        high: the upper edges, likewise.
        logs: by how much the numbers are above (positive) or below, likewise; NaN where nobody knows.
        slack: how far a number of each row must be outside, for its noise, float64 [rows].
    """

    bands: Bands
    track: Track
    steps: NDArray[np.int64]
    values: Array
    low: Array
    high: Array
    logs: Array
    slack: Array

    @classmethod
    def of(cls, bands: Bands, track: Track, last: int, sigmas: float) -> _Outside:
        steps = track.steps[track.new]
        columns = columns_of(track.names, bands.names)
        values = np.where((columns >= 0) & (steps <= last)[:, None], track.values[track.new][:, columns], np.nan)
        low, high = bands.around(steps)
        logs = bands.outside(values, low, high)
        return cls(bands, track, steps, values, low, high, logs, sigmas * bands.noise + bands.spread)
