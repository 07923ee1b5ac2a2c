"""What is compared of numbers: the bands of good runs, and how far outside a number counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.comparing.bands import EARLY, SHARE, Bands
from lightning_hooks.comparing.exact import columns_of
from lightning_hooks.health.evidence import LOSS, Evidence
from lightning_hooks.health.reference.reference import BAND_KEYS
from lightning_hooks.health.reference.rule import Compared, GoodRuns, first_run
from lightning_hooks.health.roles import Mask, roles_of
from lightning_hooks.health.rule import Symptom
from lightning_hooks.health.track import Track
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


def _obstacle(good: GoodRuns, evidence: Evidence) -> str | None:
    has_common = any(key in good.reference.bands and evidence.has(*key) for key in BAND_KEYS)
    return None if has_common else "this run and the good run have no row in common"


def _numbers_differ(good: GoodRuns, evidence: Evidence) -> Iterator[Symptom]:
    """The numbers that are far outside of their bands: of one row by a large factor, or of most rows in one direction.

    Biases and other vectors do not count alone, because their norms differ from seed to seed, and neither do experts.
    """
    tolerance = good.tolerances["tolerance"]
    outside: dict[Key, _Outside] = {}
    for key in BAND_KEYS:
        bands, track = good.reference.bands.get(key), evidence.track(*key)
        track = None if track is None else evidence.of_rows(track)
        if bands is not None and track is not None and len(track.steps[track.new]):
            outside[key] = _Outside.of(bands, track, good.reference.last, good.tolerances["sigmas"])
    for key, each in outside.items():
        holds = _alone(key, each, evidence, tolerance)
        if key in _TOGETHER:
            holds |= _most(each, good.tolerances)
        if key == LOSS and ("grad", "norm") in outside:
            # A loss that is scaled scales all gradients.
            near = np.abs(each.logs) > tolerance * np.log(_WITH_GRADIENTS)
            holds |= near & _has_most(outside["grad", "norm"], each, good.tolerances)
        for line, row in np.argwhere(holds).tolist():
            yield _symptom(each, line, row, good.words)


def _alone(key: Key, each: _Outside, evidence: Evidence, tolerance: float) -> Mask:
    """Which rows are outside by a factor that counts for a single row, bool [steps, rows]."""
    factors = np.full(each.logs.shape, ALONE[key])
    if key in DATA and (first := first_run(evidence, each.track)) in each.bands.names:
        factors[:, each.bands.names.index(first)] = DATA[key]
    if key == LOSS:
        factors[each.steps < EARLY] = _EARLY_LOSS
        # After the early steps, ignore a lower loss: this run may simply have learned more than the good run.
        factors[(each.steps >= EARLY)[:, None] & (each.logs < 0)] = np.inf
    holds: Mask = np.abs(each.logs) > np.maximum(tolerance * np.log(factors), each.slack)
    roles = roles_of(evidence)
    if key[0] in ("param", "grad", "update"):
        # An expert may get hardly any data, so its gradient says little.
        names = each.bands.names
        holds &= False if roles is None else roles.are_weights(names) & ~roles.are_experts(names)
    return holds


def _most(each: _Outside, tolerances: Mapping[str, float]) -> Mask:
    """Which rows are outside in the direction in which most rows are, bool [steps, rows]."""
    holds = np.abs(each.logs) > tolerances["tolerance"] * np.log(tolerances["together"])
    known = np.isfinite(each.logs).sum(axis=1, keepdims=True)
    least = np.maximum(_FEWEST, tolerances["share"] * known)
    above, below = holds & (each.logs > 0), holds & (each.logs < 0)
    most: Mask = (above & (above.sum(axis=1, keepdims=True) >= least)) | (below & (below.sum(axis=1, keepdims=True) >= least))
    return most


def _has_most(grads: _Outside, loss: _Outside, tolerances: Mapping[str, float]) -> Mask:
    """Whether most gradients are outside in the direction of the loss, bool [steps, 1]."""
    most = _most(grads, tolerances)
    same: Mask = (most & (np.sign(grads.logs) == np.sign(loss.logs))).any(axis=1, keepdims=True)
    return same


def _symptom(each: _Outside, line: int, row: int, words: str) -> Symptom:
    tensor, stat = each.bands.key
    value, is_above = float(each.values[line, row]), bool(each.logs[line, row] > 0)
    low, high = (each.bands.value(float(edge[line, row])) for edge in (each.low, each.high))
    what = "it" if each.bands.key == LOSS else f"the {stat} of its {tensor}"
    side = f"{'above' if is_above else 'below'} the {low:.3g} to {high:.3g}"
    text = f"{what} is {value:.3g}, {side} that it had {words} around this step"
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


NUMBERS: Final = Compared(
    "ReferenceNumbers",
    (_numbers_differ,),
    tolerances={
        # The power to which each factor is raised: with 2, 10 becomes 100.
        "tolerance": 1.0,
        # The factor that counts at most rows together, and the share of the rows of a tensor that are most rows.
        "together": 2.0,
        "share": 0.8,
        # How many standard deviations of its own noise a number must be outside, at the least.
        "sigmas": 6.0,
    },
    obstacle=_obstacle,
    patience=3,
    family="numerics",
    needs=BAND_KEYS,
    source="tried: of healthy trainings that differ in their seed, no number leaves its band by half as much",
)
"""A statistic is far outside of the band of the good run."""
