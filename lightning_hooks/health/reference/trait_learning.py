"""Learns the traits of rows from the statistics of a good run, in chunks of steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.comparing.exact import columns_of
from lightning_hooks.health.reference.traits import MOST_COUNTS, Traits, digits_of, jumps, repeated
from lightning_hooks.health.window import Array

Mask = NDArray[np.bool_]
_LEAST: Final = 3
"""The measurements that a trait needs."""


class _Tally:
    """How often a condition held at each row, of the times at which it was known."""

    def __init__(self, rows: int) -> None:
        self.known, self.held = np.zeros(rows, dtype=np.int64), np.zeros(rows, dtype=np.int64)

    def add(self, holds: Mask, known: Mask) -> None:
        self.known += known.sum(axis=0)
        self.held += (holds & known).sum(axis=0)

    def all_or_none(self, names: Sequence[str]) -> dict[str, bool | None]:
        """True where it always held, False where it never did, else None; rows with few measurements are left out."""
        verdicts = np.where(self.held == self.known, 1, np.where(self.held == 0, 0, -1)).tolist()
        known = (self.known >= _LEAST).tolist()
        return {
            name: None if verdict < 0 else bool(verdict)
            for name, verdict, enough in zip(names, verdicts, known, strict=True)
            if enough
        }

    def shares(self, names: Sequence[str]) -> dict[str, float]:
        """The share of times at which it held."""
        pairs = zip(names, self.held.tolist(), self.known.tolist(), strict=True)
        return {name: held / known for name, held, known in pairs if known >= _LEAST}


class _OfTensor:
    """Learns the traits of the rows of one tensor."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        rows = len(self.names)
        self.present, self.moves, self.repeats = _Tally(rows), _Tally(rows), _Tally(rows)
        self.counts: list[set[int]] = [set() for _ in self.names]
        self.least, self.most = np.full(rows, 99, dtype=np.intp), np.zeros(rows, dtype=np.intp)
        self.digit_views = np.zeros(rows, dtype=np.int64)
        self.jump = np.full(rows, np.nan)
        self.last: tuple[NDArray[np.int64], dict[str, Array]] | None = None

    def with_last(
        self, steps: NDArray[np.int64], numbers: Mapping[str, Array]
    ) -> tuple[NDArray[np.int64], Mapping[str, Array]]:
        """The chunk with the last step of the chunk before in front of it, for what compares two steps."""
        before, self.last = self.last, (steps[-1:], {stat: values[-1:] for stat, values in numbers.items()})
        if before is None or before[1].keys() != numbers.keys():
            return steps, numbers
        joined = {stat: np.concatenate([before[1][stat], values]) for stat, values in numbers.items()}
        return np.concatenate([before[0], steps]), joined

    def add_counts(self, counts: Array) -> None:
        for known, column in zip(self.counts, counts.T, strict=True):
            if len(known) <= MOST_COUNTS:
                known.update(map(int, np.unique(column[column > 0]).tolist()))

    def add_digits(self, low: Array, high: Array) -> None:
        digits = digits_of(low, high)
        known = digits > 0
        self.digit_views += known.sum(axis=0)
        self.least = np.minimum(self.least, np.where(known, digits, 99).min(axis=0))
        self.most = np.maximum(self.most, digits.max(axis=0))


class TraitLearner:
    """Learns the traits of all tensors of one run.

    Example:
        >>> learner, steps = TraitLearner(), np.arange(3)
        >>> learner.add("grad", ["a", "b"], steps, {"count": np.array([[4.0, 0.0]] * 3)}, np.ones((3, 2), dtype=bool))
        >>> learner.traits()["grad"].present
        {'a': True, 'b': False}
    """

    def __init__(self) -> None:
        self._tensors: dict[str, _OfTensor] = {}
        self._params: dict[str, Array] = {}

    def add(self, tensor: str, names: Sequence[str], steps: NDArray[np.int64], numbers: Mapping[str, Array], due: Mask) -> None:
        """Add the next steps of a tensor. `param` comes before `update`.

        Args:
            tensor: its name.
            names: of its rows, the same at each call.
            steps: int64 [steps].
            numbers: by statistic, float64 [steps, rows].
            due: whether each row was to be measured, bool [steps, rows].
        """
        if tensor not in self._tensors:
            self._tensors[tensor] = _OfTensor(names)
        of_tensor = self._tensors[tensor]
        add: Callable[..., None] | None = {
            "output": self._add_output,
            "grad": self._add_presence,
            "update": self._add_update,
            "input": self._add_input,
            "param": self._add_param,
        }.get(tensor)
        if add is not None:
            add(of_tensor, steps, numbers, due)

    def _add_presence(self, of: _OfTensor, steps: NDArray[np.int64], numbers: Mapping[str, Array], due: Mask) -> None:
        of.present.add(numbers["count"] > 0, due)

    def _add_output(self, of: _OfTensor, steps: NDArray[np.int64], numbers: Mapping[str, Array], due: Mask) -> None:
        self._add_presence(of, steps, numbers, due)
        of.add_counts(numbers["count"])
        of.add_digits(numbers["min"], numbers["max"])

    def _add_param(self, of: _OfTensor, steps: NDArray[np.int64], numbers: Mapping[str, Array], due: Mask) -> None:
        self._params = dict(numbers)

    def _add_update(self, of: _OfTensor, steps: NDArray[np.int64], numbers: Mapping[str, Array], due: Mask) -> None:
        measured = numbers["count"] > 0
        of.moves.add(numbers["abs_max"] > 0, measured & moved_at_all(numbers["abs_max"]))
        params = self._tensors.get("param")
        if params is None or not self._params:
            return
        both = weights_and_updates(params.names, self._params, of.names, numbers)
        found = jumps(*of.with_last(steps, both))
        if len(found.multiples):
            of.jump = np.fmax(of.jump, np.fmax.reduce(found.multiples, axis=0))

    def _add_input(self, of: _OfTensor, steps: NDArray[np.int64], numbers: Mapping[str, Array], due: Mask) -> None:
        # Inputs may be measured at every tenth step only. Compare the steps at which they are.
        measured = np.isfinite(numbers["std"]).any(axis=1)
        if measured.any():
            _, joined = of.with_last(steps[measured], {stat: values[measured] for stat, values in numbers.items()})
            of.repeats.add(*repeated(joined))

    def traits(self) -> dict[str, Traits]:
        """The traits of each tensor but `param`, after all chunks. Those of a weight are among the traits of `update`."""
        return {tensor: _traits(each) for tensor, each in self._tensors.items() if tensor != "param"}


def moved_at_all(largest: Array) -> Mask:
    """At which steps any parameter moved, bool [steps, 1]: none does at a step that the loss scaler skips."""
    with np.errstate(invalid="ignore"):
        moved: Mask = np.any(largest > 0, axis=1, keepdims=True)
    return moved


def weights_and_updates(
    params: Sequence[str], of_params: Mapping[str, Array], updates: Sequence[str], of_updates: Mapping[str, Array]
) -> dict[str, Array]:
    """The statistics that `jumps` reads, the rows in the order of the updates; NaN for one without a row of its weight."""
    order = columns_of(params, updates)
    found = {stat: np.where(order >= 0, values[:, order], np.nan) for stat, values in of_params.items()}
    found["count"] = np.where(found["count"] > 0, found["count"], np.nan)
    return {**found, "update": of_updates["norm"], "update_max": of_updates["abs_max"]}


def _traits(of: _OfTensor) -> Traits:
    counts = zip(of.names, of.counts, strict=True)
    digits = zip(of.names, of.least.tolist(), of.most.tolist(), of.digit_views.tolist(), strict=True)
    return Traits(
        of.present.all_or_none(of.names),
        of.moves.all_or_none(of.names),
        {name: tuple(sorted(found)) if len(found) <= MOST_COUNTS else () for name, found in counts if found},
        {name: (least, most) for name, least, most, views in digits if views >= _LEAST},
        {name: jump for name, jump in zip(of.names, of.jump.tolist(), strict=True) if jump == jump},
        of.repeats.shares(of.names),
    )
