"""Wilson's interval against numbers of others: R's `prop.test(…, correct = FALSE)` and Newcombe (1998), table I."""

from __future__ import annotations

import pytest

from benchmarks.trainings.wilson import per_thousand, percent, wilson


@pytest.mark.parametrize(
    ("count", "total", "low", "high"),
    [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
        (29, 29, 0.8830, 1.0),
    ],
)
def test_intervals(count: int, total: int, low: float, high: float) -> None:
    assert wilson(count, total) == (pytest.approx(low, abs=5e-5), pytest.approx(high, abs=5e-5))


def test_of_nothing_everything_is_possible() -> None:
    assert wilson(0, 0) == (0.0, 1.0)
    assert (per_thousand(0, 0), percent(0, 0)) == ("0.0 (0.0 to 1000.0)", "–")
