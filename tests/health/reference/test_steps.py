"""Which steps a run was watched at, and which values its facts may have had between them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_hooks.codec import decode, encode
from lightning_hooks.health.reference.observed import Observed
from lightning_hooks.health.reference.schedule import MOST_CORNERS, Schedule
from lightning_hooks.health.reference.timeline import Timeline

ascending = st.sets(st.integers(0, 300), min_size=1, max_size=60).map(sorted)


@given(ascending, st.integers(0, 310))
def test_the_watched_steps_around_a_step_are_found_again(steps: list[int], step: int) -> None:
    observed = Observed.of(steps)
    before, behind = [each for each in steps if each <= step], [each for each in steps if each >= step]
    assert observed.around(step) == ((before[-1], behind[0]) if before and behind else None)
    assert (observed.first, observed.last) == (steps[0], steps[-1])
    assert decode(Observed, encode(observed), "observed") == observed


def test_a_usual_run_is_two_ranges() -> None:
    assert len(Observed.of([*range(25), *range(29, 10_000, 5)]).ranges) == 2


@pytest.mark.parametrize("ranges", [[[3, 1, 1]], [[0, 4, 3]], [[0, 4, 1], [4, 6, 1]], [[0, 1, 0]]])
def test_ranges_that_do_not_ascend_are_refused(ranges: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="ranges of steps must ascend"):
        Observed(ranges)


@given(ascending, st.data())
def test_a_schedule_allows_each_of_its_own_numbers(steps: list[int], data: st.DataObject) -> None:
    values = data.draw(st.lists(st.sampled_from([0.0, 0.1, 0.05, 1e-4]), min_size=len(steps), max_size=len(steps)))
    observed, schedule = Observed.of(steps), decode(Schedule, encode(Schedule.of(steps, values)), "rates")
    for step, value in zip(steps, values, strict=True):
        assert schedule.allows(observed, step, value)
        assert not schedule.allows(observed, step, value + 0.01)


@pytest.mark.parametrize("steps", [1_000, 200_000])
def test_a_cosine_takes_few_corners_and_tells_a_shift(steps: int) -> None:
    rates = [0.5 * (1 + math.cos(math.pi * step / steps)) for step in range(steps)]
    schedule, observed = Schedule.of(range(steps), rates), Observed.of(range(steps))
    assert len(schedule.corners) <= MOST_CORNERS
    assert max(abs(schedule.at(step) - rates[step]) for step in range(0, steps, 37)) < 1e-5
    middle = steps // 2
    assert schedule.allows(observed, middle, rates[middle])
    assert not schedule.allows(observed, middle, rates[middle + steps // 50])


def test_everything_is_allowed_outside_of_the_run() -> None:
    assert Schedule.of([5, 6], [0.1, 0.1]).allows(Observed.of([5, 6]), 7, 9.0)


def test_a_timeline_is_read_as_it_was_written() -> None:
    timeline: Timeline[tuple[str, ...]] = Timeline()
    for step, names in enumerate([("a",), ("a",), ("a", "b")]):
        timeline.add(step, names)
    assert encode(timeline) == [[0, ["a"]], [2, ["a", "b"]]]
    assert decode(Timeline[tuple[str, ...]], encode(timeline), "frozen") == timeline
    assert timeline.values(Observed.of([0, 1, 2]), 3) == set()
