"""Learning: the usual range and the traits of each row, from the step views of one or several good runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.comparing.bands import LOSS_KEY, BandLearner, Bands, joined
from lightning_hooks.errors import RuleError
from lightning_hooks.health.reading import Reader
from lightning_hooks.health.reference.record import RecordLearner
from lightning_hooks.health.reference.reference import BAND_KEYS, TRAIT_KEYS, Reference
from lightning_hooks.health.reference.trait_learning import TraitLearner
from lightning_hooks.health.reference.traits import Traits, merged
from lightning_hooks.health.window import Array, Key
from lightning_hooks.plan.row_index import RowIndex
from lightning_hooks.records.facts import Structure
from lightning_hooks.records.step_view import StepView

_CHUNK: Final = 64  # views that are read together
_LEAST_STEPS: Final = 10


def learn(runs: Iterable[tuple[str, Iterable[StepView]]]) -> Reference:
    """The reference of good runs.

    Args:
        runs: the name of each run, for messages, and its step views.

    Raises:
        RuleError: there is no run, a run has fewer than 10 steps, or the runs trained different models.
    """
    learned = [_learn(name, views) for name, views in runs]
    if not learned:
        raise RuleError("reference: give at least one good run")
    first = learned[0]
    for each in learned[1:]:
        if first.structure and each.structure and _parameters(first.structure) != _parameters(each.structure):
            raise RuleError(
                f"reference: {each.name} trained another model than {first.name}: their parameters differ in name or shape; "
                "give good runs of one model"
            )
    keys = dict.fromkeys(key for each in learned for key in each.bands)
    tensors = dict.fromkeys(tensor for each in learned for tensor in each.traits)
    return Reference(
        records=tuple(each.records.record() for each in learned),
        structure=next((each.structure for each in learned if each.structure is not None), None),
        bands={key: joined([bands for each in learned for bands in each.bands.get(key, ())]) for key in keys},
        traits={tensor: merged([t for each in learned for t in each.traits.get(tensor, ())]) for tensor in tensors},
    )


def _parameters(structure: Structure) -> list[tuple[str, tuple[int, ...]]]:
    return [(each.name, each.shape) for each in structure.parameters]


class _Learned:
    """The bands and traits of one run. After a resume its views may have other rows: a segment is a part with the same rows.

    Args:
        name: of the run.

    Attributes:
        bands: by key, those of each segment.
        traits: by tensor, those of each segment.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.records = RecordLearner(name)
        self.structure: Structure | None = None
        self.bands: dict[Key, list[Bands]] = {}
        self.traits: dict[str, list[Traits]] = {}
        self.count = 0


def _learn(name: str, views: Iterable[StepView]) -> _Learned:
    learned = _Learned(name)
    chunk: list[StepView] = []
    segment: _Segment | None = None
    for view in views:
        learned.records.add(view.step, view.facts)
        learned.structure = learned.structure or view.structure
        learned.count += 1
        if segment is None or segment.index is not view.rows or len(chunk) == _CHUNK:
            if segment is not None:
                segment.add(chunk)
            chunk = []
        if segment is None or segment.index is not view.rows:
            _close(segment, learned)
            segment = _Segment(view.rows)
        chunk.append(view)
    if segment is not None:
        segment.add(chunk)
        _close(segment, learned)
    if learned.count < _LEAST_STEPS:
        raise RuleError(f"reference: {name} has {learned.count} watched steps; a good run needs at least {_LEAST_STEPS}")
    return learned


def _close(segment: _Segment | None, learned: _Learned) -> None:
    if segment is None:
        return
    for key, bands in segment.bands.items():
        learned.bands.setdefault(key, []).append(bands.bands())
    for tensor, traits in segment.traits().items():
        learned.traits.setdefault(tensor, []).append(traits)


class _Segment:
    """Learns from views with the same rows.

    Args:
        index: the row index of the views.
    """

    def __init__(self, index: RowIndex) -> None:
        self.index = index
        self.bands: dict[Key, BandLearner] = {}
        self._reader = Reader(index, [*BAND_KEYS, *TRAIT_KEYS])
        self._traits = TraitLearner()

    def add(self, views: Sequence[StepView]) -> None:
        """Add the next views."""
        if not views:
            return
        steps = np.array([view.step for view in views], dtype=np.int64)
        for key in BAND_KEYS:
            values = self._reader.read(key, views)
            if values is None or not np.isfinite(values).any():
                continue
            if key not in self.bands:
                names = self._reader.columns[key[0]].names
                self.bands[key] = BandLearner(key, names, _scale(key, values))
            self.bands[key].add(steps, values)
        for tensor in dict.fromkeys(tensor for tensor, _ in TRAIT_KEYS):
            self._add_traits(tensor, steps, views)

    def _add_traits(self, tensor: str, steps: NDArray[np.int64], views: Sequence[StepView]) -> None:
        columns = self._reader.columns.get(tensor)
        if columns is None or not columns.names:
            return
        read: Mapping[str, Array | None] = {
            stat: self._reader.read((tensor, stat), views) for other, stat in TRAIT_KEYS if other == tensor
        }
        numbers = {stat: values for stat, values in read.items() if values is not None}
        due = np.stack([self._reader.are_due(tensor, view.due) for view in views])
        self._traits.add(tensor, columns.names, steps, numbers, due)

    def traits(self) -> dict[str, Traits]:
        """The traits of each tensor."""
        return self._traits.traits()


def _scale(key: Key, values: Array) -> float | None:
    """The scale of a loss that is not always positive: the median of its magnitude; None for positive numbers."""
    finite = values[np.isfinite(values)]
    if key != LOSS_KEY or not len(finite) or finite.min() > 0:
        return None
    return max(float(np.median(np.abs(finite))), 1e-9)
