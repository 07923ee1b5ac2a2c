"""Window: the numbers of the last steps, as arrays [steps, columns], and the early level of each column."""

from __future__ import annotations

import base64
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.errors import RuleError, shown

Array = NDArray[np.float64]
Key = tuple[str, str]
"""A tensor and a statistic; for a number of the whole run an empty tensor and its tag."""
WINDOW: Final = 256
"""The number of published steps that rules can read."""
FIRST_EARLY, LAST_EARLY = 5, 24
"""The early level of a row is the median of its own measurements with these numbers, counted from 0."""


class Window:
    """The last steps, with one array [steps, columns] for each key. Reading returns slices without a copy.

    Steps are added one by one; the numbers of a key may follow later, for all its missing steps at once. A slice that was read
    stays valid: later steps are appended behind it, and a full buffer is replaced, not overwritten.

    Args:
        size: the number of steps to keep.

    Example:
        >>> window = Window(2)
        >>> for step in range(3):
        ...     window.add_step(step)
        >>> window.missing(("loss", "mean"))
        3
        >>> window.fill(("loss", "mean"), np.array([[0.0], [0.1], [0.2]]))
        >>> window.steps.tolist(), window.read(("loss", "mean")).ravel().tolist()
        ([1, 2], [0.1, 0.2])
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._start = self._end = 0
        self._steps = np.empty(2 * size, dtype=np.int64)
        self._of_rows = np.ones(2 * size, dtype=np.bool_)
        self._arrays: dict[Key, Array] = {}
        self._filled: dict[Key, int] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._arrays

    @property
    def steps(self) -> NDArray[np.int64]:
        """The steps, ascending, int64 [steps]."""
        return self._steps[self._start : self._end]

    @property
    def of_rows(self) -> NDArray[np.bool_]:
        """Whether each step is one of rows, not one between these, bool [steps]."""
        return self._of_rows[self._start : self._end]

    def read(self, key: Key) -> Array:
        """The numbers of a key, float64 [steps, columns]; NaN where a step has none."""
        return self._arrays[key][self._start : self._end]

    def add_step(self, step: int, *, is_between: bool = False) -> None:
        """Add a step, later than all others."""
        if self._end == self._steps.size:
            self._move_to_new_buffers()
        self._steps[self._end] = step
        self._of_rows[self._end] = not is_between
        self._end += 1
        if self._end - self._start > self.size:
            self._start += 1

    def missing(self, key: Key) -> int:
        """The number of last steps whose numbers of a key are to be filled in."""
        return self._end - self._filled.get(key, 0)

    def fill(self, key: Key, values: Array | None) -> None:
        """Fill in the numbers of a key for its missing steps, float64 [missing, columns], or for the last ones of them.

        None leaves the steps without numbers.
        """
        if values is not None and len(values):
            if key not in self._arrays:
                self._arrays[key] = np.full((len(self._steps), values.shape[1]), np.nan)
            self._arrays[key][self._end - len(values) : self._end] = values
        self._filled[key] = self._end

    def _move_to_new_buffers(self) -> None:
        begin = self._start
        count = self._end - begin
        steps, of_rows = np.empty(2 * self.size, dtype=np.int64), np.ones(2 * self.size, dtype=np.bool_)
        steps[:count], of_rows[:count] = self._steps[begin : self._end], self._of_rows[begin : self._end]
        for key, array in self._arrays.items():
            moved = np.full(array.shape, np.nan)
            moved[:count] = array[begin : self._end]
            self._arrays[key] = moved
        self._filled = {key: max(0, filled - begin) for key, filled in self._filled.items()}
        self._steps, self._of_rows, self._start, self._end = steps, of_rows, 0, count

    def forget_from(self, step: int) -> None:
        """Forget this step and later ones, because training went back to an earlier step."""
        self._move_to_new_buffers()
        self._end = int(np.searchsorted(self.steps, step))
        for array in self._arrays.values():
            array[self._end :] = np.nan
        self._filled = {key: min(filled, self._end) for key, filled in self._filled.items()}

    def rename(self, key: Key, columns: NDArray[np.intp]) -> None:
        """Give a key other columns: column i is the former column `columns[i]`, or a new one where that is -1."""
        if key in self._arrays:
            self._arrays[key] = with_columns(self._arrays[key], columns)

    def state_dict(self) -> dict[str, Any]:
        """The numbers as plain values: arrays are text, so that any checkpoint and JSON can hold them."""
        return {
            "steps": self.steps.tolist(),
            "values": [[*key, *to_text(self.read(key))] for key in self._arrays],
        }

    @classmethod
    def from_state(cls, size: int, state: Mapping[str, Any], between: Collection[int] = ()) -> Window:
        """The window of a `state_dict`.

        Args:
            size: the number of steps to keep.
            state: of `state_dict`.
            between: the steps that are none of rows.

        Raises:
            RuleError: the state is damaged.
        """
        window = cls(size)
        try:
            steps = [int(step) for step in state["steps"]][-size:]
            values = {(str(entry[0]), str(entry[1])): from_text(*entry[2:])[-size:] for entry in state["values"]}
            if sorted(set(steps)) != steps or any(len(each) != len(steps) for each in values.values()):
                raise ValueError("steps must ascend, and each array must have one line for each step")
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise RuleError(f"window: the saved numbers are damaged ({error}), got {shown(state)}") from error
        for step in steps:
            window.add_step(step, is_between=step in between)
        for key, each in values.items():
            window.fill(key, each)
        return window


class EarlyLevel:
    """The first measurement of each column, and the median of its measurements 5 to 24, counted from 0.

    A column has no median before its 25th measurement.

    Args:
        columns: the number of columns.

    Example:
        >>> early = EarlyLevel(1)
        >>> early.add(np.arange(30.0)[:, None])
        >>> early.firsts.tolist(), early.medians.tolist()
        ([0.0], [14.5])
    """

    def __init__(self, columns: int) -> None:
        self.counts = np.zeros(columns)
        self.samples = np.full((LAST_EARLY - FIRST_EARLY + 1, columns), np.nan)
        self.firsts = np.full(columns, np.nan)
        self.medians = np.full(columns, np.nan)
        self._incomplete = np.arange(columns)  # the columns without an early level

    def add(self, values: Array) -> None:
        """Add the numbers of new steps, float64 [steps, columns]. Numbers that are not finite do not count."""
        # Only look at columns that have no early level yet. Soon these are the few that are hardly ever measured.
        incomplete = self._incomplete
        if not incomplete.size:
            return
        values = values[:, incomplete]
        finite = np.isfinite(values)
        if not finite.any():
            return
        numbers = (self.counts[incomplete] + np.cumsum(finite, axis=0) - 1).astype(np.intp)
        steps, columns = np.nonzero(finite & (numbers >= FIRST_EARLY) & (numbers <= LAST_EARLY))
        self.samples[numbers[steps, columns] - FIRST_EARLY, incomplete[columns]] = values[steps, columns]
        starts = np.flatnonzero((self.counts[incomplete] == 0) & finite.any(axis=0))
        self.firsts[incomplete[starts]] = values[finite[:, starts].argmax(axis=0), starts]
        self.counts[incomplete] += finite.sum(axis=0)
        complete = incomplete[self.counts[incomplete] > LAST_EARLY]
        if complete.size:
            self.medians[complete] = np.median(self.samples[:, complete], axis=0)
            self._note_incomplete()

    def _note_incomplete(self) -> None:
        self._incomplete = np.flatnonzero(self.counts <= LAST_EARLY)

    def rename(self, columns: NDArray[np.intp]) -> None:
        """Give other columns, as `Window.rename` does."""
        self.counts = np.nan_to_num(with_columns(self.counts[None], columns)[0])
        self.samples = with_columns(self.samples, columns)
        self.firsts = with_columns(self.firsts[None], columns)[0]
        self.medians = with_columns(self.medians[None], columns)[0]
        self._note_incomplete()

    def state(self) -> list[Any]:
        """The measurements as plain values."""
        return to_text(np.concatenate([self.counts[None], self.firsts[None], self.medians[None], self.samples]))

    @classmethod
    def from_state(cls, state: Sequence[Any]) -> EarlyLevel:
        """The level of a `state`; raises ValueError if the state is damaged."""
        rows = from_text(*state)
        early = cls(rows.shape[1])
        if len(rows) != len(early.samples) + 3:
            raise ValueError(f"an early level has {len(early.samples) + 3} lines, got {len(rows)}")
        early.counts, early.firsts, early.medians = rows[0].copy(), rows[1].copy(), rows[2].copy()
        early.samples = rows[3:].copy()
        early._note_incomplete()
        return early


def with_columns(array: Array, columns: NDArray[np.intp]) -> Array:
    """The columns of an array [n, columns] by their numbers; NaN where the number is -1."""
    result = np.full((len(array), len(columns)), np.nan)
    result[:, columns >= 0] = array[:, columns[columns >= 0]]
    return result


def to_text(array: Array) -> list[Any]:
    """An array [n, columns] as [number of columns, text]."""
    return [array.shape[1], base64.b64encode(np.ascontiguousarray(array, dtype="<f8").tobytes()).decode()]


def from_text(columns: int, text: str) -> Array:
    """The array of `to_text`; raises ValueError if the text is damaged."""
    numbers = np.frombuffer(base64.b64decode(text, validate=True), dtype="<f8").astype(np.float64)
    return numbers.reshape(-1, columns) if columns else numbers.reshape(0, 0)


def check_widths(window: Window, early: Mapping[Key, EarlyLevel], names: Mapping[str, Sequence[str]]) -> None:
    """Raise ValueError or KeyError if saved numbers do not have one column for each row of their tensor."""
    for key, level in early.items():
        width = len(names[key[0]]) if key[0] else 1
        if window.read(key).shape[1] != width or len(level.counts) != width:
            raise ValueError(f"{key[1]!r} of {key[0]!r} has another number of columns than {width}")
