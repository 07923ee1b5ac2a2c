"""The arithmetic of the benchmarks: which step runs in which mode, and what is made of the times."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.alternating import every_nth
from benchmarks.blocks import Layout, compare


def test_every_mode_has_as_many_steps_and_every_other_round_is_reversed() -> None:
    layout = Layout(("off", "ours", "theirs"), rounds=4, length=5)
    inside = [step for step in range(layout.steps) if layout.index_in_block(step) >= 0]
    assert set(Counter(layout.mode_at(step) for step in inside).values()) == {4 * layout.block}
    first = [layout.mode_at(step) for step in inside if layout.index_in_block(step) == 0]
    assert first[:6] == ["off", "ours", "theirs", "theirs", "ours", "off"]
    assert [layout.round_of(step) for step in inside][:: 3 * layout.block] == [0, 1, 2, 3]


def test_the_lead_and_the_closing_step_are_in_no_block() -> None:
    layout = Layout(("off", "on"), rounds=1, length=1, warmup=2, lead=3)
    assert [layout.index_in_block(step) for step in range(layout.steps)] == [-1, -1, -1, 0, 1, 2, 0, 1, 2, -1]
    assert {layout.mode_at(step) for step in (0, 1, 2, layout.steps - 1)} == {"off"}


def test_a_drift_of_the_machine_leaves_the_ratio_alone() -> None:
    base = [[1.0 * drift] * 3 for drift in (1, 2, 3, 4, 5)]
    ratio = compare([[1.1 * step for step in block] for block in base], base)
    assert ratio.median == ratio.low == ratio.high == pytest.approx(1.1)
    assert ratio.extra_ms == pytest.approx(300.0)


def test_the_median_leaves_a_hiccup_out_and_the_mean_does_not() -> None:
    ratio = compare([[1.0, 1.0, 4.0]] * 3, [[1.0, 1.0, 1.0]] * 3)
    assert (ratio.median, ratio.of_means) == (1.0, 2.0)


def test_one_step_in_a_hundred_is_put_together_from_its_parts() -> None:
    row = every_nth(single=[0.15], after=[0.11], base=[[0.1] * 3], idle=[[0.1] * 3])
    assert row["median"] == pytest.approx(1 + (0.05 + 0.01) / 0.1 / 100)
    assert row["unwatched"] == 1.0
