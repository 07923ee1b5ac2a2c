"""The overhead of a step, from given times; no test reads a real clock."""

import pytest
import torch

from lightning_hooks.engine.participants.overhead import Account, Meter, Overhead, hook_cost
from lightning_hooks.rules.schedule import EveryN
from lightning_hooks.stats import kernels
from lightning_hooks.stats.table import Table


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def overhead(limit=None, call=0.0):
    return Overhead(limit, call)


def steps(overhead, number, own, rest, *, every=1):
    """Note `number` steps of `rest` seconds. Each `every`-th step is watched, which takes `own` seconds more."""
    for step in range(number):
        watched = (step + 1) % every == 0
        if watched:
            overhead.begin()
        overhead.note(own if watched else 0.0, rest + (own if watched else 0.0))


def test_accounts_exclude_one_another(clock):
    meter = Meter(clock)
    outer, inner = Account(meter), Account(meter)
    with outer:
        clock.now += 1
        with inner:
            clock.now += 2
            with inner:
                clock.now += 4
        clock.now += 8
    clock.now += 16
    assert (outer.take(), inner.take()) == (9, 6)
    assert (outer.take(), inner.take()) == (0, 0)


def test_an_account_that_is_left_by_an_error_is_left(clock):
    meter = Meter(clock)
    account = Account(meter)
    with pytest.raises(KeyError), account:
        clock.now += 1
        raise KeyError
    clock.now += 1
    assert account.take() == 1


def test_a_step_lasts_from_its_start_to_the_next_or_to_what_is_no_training(clock):
    meter = Meter(clock)
    walls = [meter.next_step()]
    clock.now += 3
    walls.append(meter.next_step())
    clock.now += 2
    meter.interrupt()
    clock.now += 100  # a validation
    meter.interrupt()
    walls.append(meter.next_step())
    clock.now += 1
    walls.append(meter.next_step())
    assert walls == [None, 3, 2, 1]


def test_the_share_is_that_of_all_steps_since_the_last_report():
    costs = overhead()
    assert costs.report() == {}
    costs.note(1.0, None)
    assert costs.report() == {}
    costs.note(1.0, 4.0)
    costs.note(0.0, 4.0)
    assert costs.report() == {"run/overhead": 0.125}
    costs.note(1.0, 2.0)
    assert costs.report() == {"run/overhead": 0.5}


def test_what_torch_takes_to_call_hooks_counts_in_every_step():
    costs = overhead(call=0.25)
    for calls in (2, 4, 0):
        costs.note(0.5, 10.0, calls=calls)
        assert costs.report() == {"run/overhead": (0.5 + calls * 0.25) / 10}


@pytest.mark.parametrize(("own", "wanted"), [(0.05, 1), (0.12, 2), (0.25, 4), (1.0, 16), (2.0, 32)])
def test_the_wish_is_the_power_of_two_that_keeps_the_limit(own, wanted):
    costs = overhead(limit=0.1)
    steps(costs, 9, own, 1.0)
    assert costs.wanted_factor(1) == wanted
    assert own / wanted / (1.0 + own / wanted) <= 0.1


def test_where_it_was_not_enough_it_wishes_for_more():
    costs = overhead(limit=0.1)
    steps(costs, 9, 0.5, 1.0)
    assert costs.wanted_factor(1) == 8
    costs.restart()
    steps(costs, 17, 2.0, 1.0, every=8)  # A watched step takes longer now.
    assert costs.wanted_factor(8) == 32 and costs.wanted_factor(8) == 8


def test_a_few_steps_and_the_first_one_say_nothing():
    costs = overhead(limit=0.1)
    steps(costs, 8, 1.0, 1.0)
    assert costs.wanted_factor(1) == 1
    costs = overhead(limit=0.1)
    costs.note(1000.0, 1001.0)
    steps(costs, 8, 0.01, 1.0)
    assert costs.wanted_factor(1) == 1


def test_what_unwatched_steps_cost_no_interval_changes():
    costs = overhead(limit=0.1)
    for _ in range(10):
        costs.note(1.0, 2.0)
        costs.begin()
        costs.note(2.0, 3.0)
    assert costs.wanted_factor(2) == 2


def test_schedules_widen():
    assert [step for step in range(40) if EveryN(every=5).widened(2).due(step)] == [9, 19, 29, 39]
    assert [step for step in range(40) if EveryN(every=5, first=12, last=30).widened(2).due(step)] == [19, 29]
    assert EveryN(steps=(7, 1, 3, 5)).widened(2).steps == (3, 7)
    assert EveryN(steps=(7, 1)).widened(1) == EveryN(steps=(7, 1))


@pytest.mark.parametrize(
    "schedule",
    [
        EveryN(),
        EveryN(every=5),
        EveryN(every=5, first=12, last=30),
        EveryN(every=7, first=6),
        EveryN(last=3),
        EveryN(steps=(7, 1, 3, 5, 5)),
        EveryN(steps=()),
    ],
    ids=repr,
)
def test_the_next_step_of_a_schedule_is_the_first_that_is_due(schedule):
    for step in range(50):
        assert schedule.next(step) == next((later for later in range(step, 200) if schedule.due(later)), None)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_what_torch_spends_on_a_hook_comes_from_the_clock_wherever_it_makes_new_tensors(clock, device):
    with torch.device(device):
        assert hook_cost(clock) == 0.0


@pytest.mark.skipif(kernels.host is kernels.no_kernel, reason="nothing is compiled")
def test_every_tensor_that_is_written_is_counted_and_timed():
    class Fallback(kernels.FallbackWriter):
        def __init__(self):
            self.direct = True
            self.came = []

        def __call__(self, row, tensor):
            self.came.append(row)

    fallback, table = Fallback(), Table(2)
    writes = [kernels.host.writer(table, row, None, fallback) for row in range(2)]
    for _ in range(3):
        for write in writes:
            write(torch.ones(1000))
    assert fallback.calls == 6 and 0 < fallback.nanoseconds < 1e9
    spent = fallback.nanoseconds
    # The compiled writer passes an integer tensor to the fallback, and does not count the call, because the fallback does.
    writes[0](torch.ones(3, dtype=torch.int64))
    fallback.direct = False
    writes[0](torch.ones(3))
    assert fallback.calls == 6 and fallback.nanoseconds == spent and fallback.came == [0, 0]
