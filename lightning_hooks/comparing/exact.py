"""Compares exactly: which rows and steps two tables have in common, and where their values differ by a bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Indices = NDArray[np.intp]


class CommonRows(NamedTuple):
    """The rows that two tables have in common, in the order of the first one.

    Args:
        names: of the rows.
        first: the position of each row in the first table.
        second: the position of each row in the second table.
    """

    names: list[str]
    first: Indices
    second: Indices


class CommonSteps(NamedTuple):
    """The steps that two tables have in common, ascending.

    Args:
        steps: int64 [steps].
        first: the position of each step in the first table.
        second: the position of each step in the second table.
    """

    steps: NDArray[np.int64]
    first: Indices
    second: Indices


def columns_of(names: Sequence[str], to: Sequence[str]) -> Indices:
    """The position of each of the rows `to` among `names`; -1 for a row that is not there.

    Example:
        >>> columns_of(["a", "b"], ["b", "c"]).tolist()
        [1, -1]
    """
    by_name = {name: column for column, name in enumerate(names)}
    return np.array([by_name.get(name, -1) for name in to], dtype=np.intp)


def common_rows(names: Sequence[str], others: Sequence[str]) -> CommonRows:
    """The rows of two tables with the same name.

    Example:
        >>> common_rows(["a", "b", "c"], ["c", "b"])
        CommonRows(names=['b', 'c'], first=array([1, 2]), second=array([1, 0]))
    """
    second = columns_of(others, names)
    first = np.flatnonzero(second >= 0)
    return CommonRows([names[row] for row in first.tolist()], first, second[first])


def common_steps(
    steps: NDArray[np.int64],
    others: NDArray[np.int64],
    firsts: NDArray[np.int64] | None = None,
    other_firsts: NDArray[np.int64] | None = None,
) -> CommonSteps:
    """The steps of two tables that are equal; both are ascending.

    Args:
        steps: of the first table.
        others: of the second table.
        firsts: the first step that each of `steps` stands for, where tables hold windows of steps. Two windows are compared
            only if they hold the same steps.
        other_firsts: the same of `others`.

    Example:
        >>> common_steps(np.array([0, 5, 10]), np.array([5, 6, 10]))
        CommonSteps(steps=array([ 5, 10]), first=array([1, 2]), second=array([0, 2]))
        >>> common_steps(np.array([5, 10]), np.array([5, 10]), np.array([5, 6]), np.array([5, 10])).steps
        array([5])
    """
    common = CommonSteps(*np.intersect1d(steps, others, assume_unique=True, return_indices=True))
    if firsts is None or other_firsts is None:
        return common
    are_same = firsts[common.first] == other_firsts[common.second]
    return CommonSteps(*(each[are_same] for each in common))


def bits_differ(a: Array, b: Array, in_a: Mask, in_b: Mask) -> Mask:
    """Which values differ by a bit, so that 0 differs from -0. NaN equals NaN if both were measured, or neither was.

    Args:
        a: float64, any shape.
        b: likewise.
        in_a: whether each value of `a` was measured.
        in_b: whether each value of `b` was measured.
    """
    found: Mask = (a.view(np.uint64) != b.view(np.uint64)) & ~(np.isnan(a) & np.isnan(b)) | (in_a != in_b)
    return found


def firsts(holds: Mask) -> tuple[Indices, Indices]:
    """The columns in which a condition holds at some line, and the first such line of each.

    Example:
        >>> firsts(np.array([[False, False], [False, True], [False, True]]))
        (array([1]), array([1]))
    """
    columns = np.flatnonzero(holds.any(axis=0))
    return columns, holds[:, columns].argmax(axis=0) if len(columns) else columns


def relative(x: float | None, y: float | None) -> float | None:
    """The difference divided by the greater magnitude; None if a value is NaN or was not measured (None).

    Example:
        >>> relative(3.0, 4.0), relative(0.0, 0.0), relative(1.0, None)
        (0.25, 0.0, None)
    """
    if x is None or y is None or np.isnan(x) or np.isnan(y):
        return None
    size = max(abs(x), abs(y))
    return abs(x - y) / size if np.isfinite(size) and size > 0 else float(x != y)
