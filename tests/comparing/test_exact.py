"""Exact comparison: common rows and steps, differing bits, and the first of them."""

from __future__ import annotations

import numpy as np
import pytest

from lightning_hooks.comparing.exact import bits_differ, common_rows, common_steps, firsts, relative


def test_common_rows_are_in_the_order_of_the_first_table_wherever_they_are_in_the_second() -> None:
    rows = common_rows(["d", "a", "c"], ["a", "b", "c", "d"])
    assert (rows.names, rows.first.tolist(), rows.second.tolist()) == (["d", "a", "c"], [0, 1, 2], [3, 0, 2])
    none = common_rows(["a"], [])
    assert (none.names, none.first.tolist(), none.second.tolist()) == ([], [], [])


def test_common_steps_have_their_place_in_both_tables() -> None:
    steps = common_steps(np.arange(0, 100, 10), np.arange(5, 100, 15))
    assert steps.steps.tolist() == [20, 50, 80]
    assert steps.first.tolist() == [2, 5, 8] and steps.second.tolist() == [1, 3, 5]
    assert len(common_steps(np.array([1, 2]), np.array([3])).steps) == 0


NAN = float("nan")


@pytest.mark.parametrize(
    ("a", "b", "in_a", "in_b", "differs"),
    [
        (1.0, 1.0, True, True, False),
        (1.0, np.nextafter(1.0, 2.0), True, True, True),
        (0.0, -0.0, True, True, True),
        (NAN, -NAN, True, True, False),
        (NAN, NAN, True, False, True),
        (NAN, NAN, False, False, False),
        (1.0, NAN, True, False, True),
    ],
)
def test_values_differ_by_their_bits_and_by_whether_they_were_measured(
    a: float, b: float, in_a: bool, in_b: bool, differs: bool
) -> None:
    found = bits_differ(*(np.array([[each]]) for each in (a, b)), *(np.array([[each]]) for each in (in_a, in_b)))
    assert found.tolist() == [[differs]]


def test_the_first_line_of_each_column_in_which_a_condition_holds() -> None:
    columns, lines = firsts(np.array([[False, False, True], [True, False, True], [True, False, False]]))
    assert (columns.tolist(), lines.tolist()) == ([0, 2], [1, 0])
    columns, lines = firsts(np.zeros((0, 3), dtype=np.bool_))
    assert (columns.tolist(), lines.tolist()) == ([], [])


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [(1.0, 2.0, 0.5), (-1.0, 1.0, 2.0), (0.0, -0.0, 0.0), (float("inf"), 1.0, 1.0), (NAN, 1.0, None), (None, 1.0, None)],
)
def test_a_relative_difference_is_of_the_greater_magnitude(x: float | None, y: float | None, expected: float | None) -> None:
    assert relative(x, y) == expected
