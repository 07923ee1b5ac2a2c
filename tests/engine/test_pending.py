"""Steps that follow one another quickly are recorded together; everything else at once."""

from types import SimpleNamespace
from typing import Any

import pytest

from lightning_hooks.engine import pending
from lightning_hooks.errors import StoppedError


class Scripted:
    """Plays a recorder with its observer, and a clock: notes what is asked, in order."""

    def __init__(self, size: int = 100, late: tuple[int, ...] = (), stop_at: int | None = None) -> None:
        self.observer = self
        self.calls: list[str] = []
        self.now = 0.0
        self.size, self.late, self.stop_at = size, late, stop_at
        self.broken: int | None = None
        self.taken: list[int] = []

    def end(self, step: int, reports: Any, scale: Any) -> Any:
        merged = SimpleNamespace(stop=step == self.stop_at, step=step)
        kept = lambda: self.calls.append(f"keep {step}")  # noqa: E731
        return SimpleNamespace(step=step, here=step not in self.late, merged=merged, nbytes=self.size, keep=kept)

    def heed(self, merged: Any) -> None:
        self.calls.append(f"heed {merged.step}")
        if merged.stop:
            raise StoppedError("it failed on another rank")

    def read(self, ended: Any) -> Any:
        if ended.step == self.broken:
            raise ValueError(f"step {ended.step}")
        return f"record {ended.step}"

    def take(self, *records: str) -> None:
        self.taken.append(len(records))
        self.calls.extend(records)


def steps_of(script: Scripted) -> pending.Pending:
    made = pending.Pending(script, script.take, clock=lambda: script.now)  # type: ignore[arg-type]
    made.together = True
    return made


def run(script: Scripted, numbers: Any, seconds: float = 0.01) -> list[list[str]]:
    """What each of some steps makes happen when it ends."""
    steps, out = steps_of(script), []
    for number in numbers:
        before = len(script.calls)
        steps.end(number, {})
        out.append(script.calls[before:])
        script.now += seconds
    return out


def test_steps_that_follow_are_kept_until_the_first_of_them_is_old_enough():
    first, *kept, last = run(Scripted(), range(7))
    assert first == ["heed 0", "record 0"]
    assert kept == [[f"keep {step}", f"heed {step}"] for step in range(1, 6)]
    assert last == ["heed 6", *(f"record {step}" for step in range(1, 7))]


@pytest.mark.parametrize("numbers", [range(0, 8, 2), [3, 2, 1], [5, 5, 5]], ids=str)
def test_steps_apart_are_recorded_at_once(numbers):
    assert run(Scripted(), numbers, 0.001) == [[f"heed {number}", f"record {number}"] for number in numbers]


def test_slow_steps_are_recorded_at_once():
    assert run(Scripted(), range(4), 1.5 * pending.QUICK) == [[f"heed {number}", f"record {number}"] for number in range(4)]


def test_large_tables_are_not_kept():
    assert all("keep" not in call for calls in run(Scripted(size=pending.MOST_BYTES + 1), range(3)) for call in calls)
    half = run(Scripted(size=pending.MOST_BYTES // 2), range(4), 0.001)
    assert half[1:] == [["keep 1", "heed 1"], ["keep 2", "heed 2"], ["heed 3", "record 1", "record 2", "record 3"]]


def test_nothing_is_kept_where_nobody_said_that_it_may_be():
    script = Scripted()
    steps = pending.Pending(script, script.take, clock=lambda: 0.0)  # type: ignore[arg-type]
    for number in range(3):
        steps.end(number, {})
        assert not steps.waits
    assert script.calls == ["heed 0", "record 0", "heed 1", "record 1", "heed 2", "record 2"]


def test_one_that_cannot_be_recorded_does_not_take_the_others_along():
    script = Scripted()
    script.broken = 2
    steps = steps_of(script)
    for number in range(5):
        steps.end(number, {})
    script.calls.clear()
    with pytest.raises(ValueError, match="step 2"):
        steps.settle()
    assert script.calls == ["record 1", "record 3", "record 4"] and script.taken == [1, 3] and not steps.waits
    steps.settle()


def test_an_interruption_leaves_the_others_for_the_next_time():
    script = Scripted()
    steps = steps_of(script)
    for number in range(5):
        steps.end(number, {})
    read = script.read

    def interrupted(ended: Any) -> Any:
        if ended.step == 3:
            raise KeyboardInterrupt
        return read(ended)

    script.calls.clear()
    script.read = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        steps.settle()
    assert script.calls == ["record 1", "record 2"] and steps.waits
    steps.settle()
    assert script.calls == ["record 1", "record 2", "record 4"] and not steps.waits


def test_the_first_error_is_raised_where_writing_fails_too():
    script = Scripted()
    script.broken = 1
    steps = steps_of(script)
    for number in range(3):
        steps.end(number, {})
    steps._take = lambda *records: 1 / 0  # type: ignore[assignment, return-value]
    with pytest.raises(ValueError, match="step 1"):
        steps.settle()


def test_what_cannot_be_written_is_said_once():
    script = Scripted()

    def full(*records: str) -> None:
        raise OSError("no space")

    steps = pending.Pending(script, full, clock=lambda: 0.0)  # type: ignore[arg-type]
    steps.together = True
    with pytest.raises(OSError, match="no space"):
        steps.end(0, {})
    steps.end(1, {})
    with pytest.raises(OSError, match="no space"):
        steps.settle()
    assert not steps.waits
    steps.settle()


@pytest.mark.parametrize("ask", ["settle", "heed"])
def test_who_asks_has_all_of_them_once_and_in_order(ask):
    script = Scripted()
    steps = steps_of(script)
    for number in range(4):
        steps.end(number, {})
    assert steps.waits
    script.calls.clear()
    getattr(steps, ask)()
    getattr(steps, ask)()
    assert script.calls == ["record 1", "record 2", "record 3"] and not steps.waits


def test_a_step_whose_numbers_are_on_their_way_brings_those_before_with_it():
    _, kept, late, after = run(Scripted(late=(2,)), range(4))
    assert kept == ["keep 1", "heed 1"] and late == []
    assert after == ["heed 2", "record 1", "record 2", "heed 3", "record 3"]


def test_a_vote_to_stop_is_heeded_at_the_end_of_its_step_and_what_came_before_is_recorded():
    script = Scripted(stop_at=2)
    steps = steps_of(script)
    steps.end(0, {})
    steps.end(1, {})
    with pytest.raises(StoppedError, match="another rank"):
        steps.end(2, {})
    script.calls.clear()
    steps.settle()
    assert script.calls == ["record 1"]
