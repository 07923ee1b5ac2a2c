"""The cost of a step, as counts of hooks, calls and preparations; no test measures seconds."""

import gc

import pytest
import torch
from torch import nn

from lightning_hooks import StatsMonitor, Watch, instrument
from lightning_hooks.engine.assembly import Contribution, assemble
from lightning_hooks.engine.participants.participant import Participant
from lightning_hooks.engine.running.hook_manager import HookManager
from lightning_hooks.hooks.eager import ForwardHook
from lightning_hooks.hooks.plain import PlainHook
from lightning_hooks.plan import refresh
from lightning_hooks.plan.resolve import resolve
from lightning_hooks.records.layout import EntryLayout
from lightning_hooks.rules.schedule import EveryN
from lightning_hooks.stats.measurement import Measurement


def our_hooks(module):
    return [hook for hook in module._forward_hooks.values() if isinstance(hook, (PlainHook, ForwardHook))]


RULES = [
    Watch(modules="*", select="leaves", tensors=["output", "output_grad"], stats=["mean", "norm"]),
    Watch(params="*", tensors=["param", "grad"], stats=["mean", "norm"]),
]


def net():
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))


def run(model, watched, steps):
    for _ in range(steps):
        model(torch.randn(3, 4)).sum().backward()
        watched.step()


def test_a_module_that_is_only_looked_at_has_one_hook_of_one_call():
    model = net()
    with instrument(model, [StatsMonitor(RULES)]):
        for module in model:
            assert len(our_hooks(module)) == 1
            assert len(module._forward_hooks) == 1 and not module._forward_pre_hooks and not module._backward_hooks


def test_hooks_stay_from_step_to_step_and_are_away_on_unwatched_ones():
    model = net()
    with instrument(model, [StatsMonitor(RULES)]) as watched:
        before = [hook for module in model for hook in our_hooks(module)]
        run(model, watched, 3)
        after = [hook for module in model for hook in our_hooks(module)]
        assert [id(hook) for hook in before] == [id(hook) for hook in after]
    model = net()
    every = [Watch(modules="*", tensors="output", stats="mean", every_n_steps=3)]
    with instrument(model, [StatsMonitor(every)]) as watched:
        counts = []
        for _ in range(6):
            counts.append(sum(len(our_hooks(module)) for module in model))
            run(model, watched, 1)
        assert counts == [0, 0, 3, 0, 0, 3]


def test_a_step_begins_with_no_module_called_and_only_due_steps_have_hooks():
    model = net()
    with instrument(model, [StatsMonitor(RULES)]) as watched:
        hook_manager = watched._run.hook_manager
        for step in range(3):
            assert hook_manager.step == step and not hook_manager.called
            model(torch.randn(3, 4)).sum().backward()
            assert hook_manager.called == set(map(id, model))
            watched.step()
        observer, _ = hook_manager.participants
        observer.shares[0].widen(2)
        counts = []
        for _ in range(4):
            run(model, watched, 1)
            counts.append(len(hook_manager.active))
        assert counts == [0, 2, 0, 2] or counts == [2, 0, 2, 0]  # the observer and its reading


def test_a_monitor_of_every_step_is_due_at_every_step_until_its_intervals_grow():
    plan = resolve(net(), RULES, EveryN())
    observer = assemble([Contribution(plans={"train": plan})]).producers["train"].observer
    share = observer.shares[0]
    assert [observer.step_key(step, "train") is not None for step in range(6)] == [True] * 6
    assert observer.step_key(0, "train") == observer.step_key(5, "train") and observer.step_key(0, "validate") is None
    share.widen(3)
    assert [observer.step_key(step, "train") is not None for step in range(6)] == [False, False, True] * 2
    share.widen(1)
    assert [observer.step_key(step, "train") is not None for step in range(3)] == [True] * 3


@pytest.mark.parametrize("beside", [None, 1, 2], ids=["alone", "beside another rule", "beside one of fewer steps"])
def test_hooks_that_come_and_go_are_made_once(beside):
    model = net()
    rules = [Watch(modules="0", tensors=["output", "output_grad"], stats="mean", every_n_steps=3)]
    if beside is not None:
        rules.append(Watch(modules="2", tensors="output", stats="mean", every_n_steps=beside))
    seen = []  # Keep the hooks themselves: the id of a deleted hook may be used again.
    with instrument(model, [StatsMonitor(rules)]) as watched:
        for _ in range(18):
            seen.append([hook for module in model for hook in our_hooks(module)])
            run(model, watched, 1)
    first, *later = seen[5::6]  # the steps at which all rules are due; steps of other kinds lie in between
    assert first and all(one is other for hooks in later for one, other in zip(first, hooks, strict=True))
    assert bool(seen[0]) == (beside == 1) == bool(seen[12])


def test_who_has_no_hook_on_modules_does_not_decide_which_these_have():
    class Sometimes(Participant):
        def __init__(self):
            self.began = []

        def step_key(self, step, stage):
            return f"at step {step}" if step % 3 else None

        def begin_step(self, step, stage, reporting):
            self.began.append(step)

    model, beside = net(), Sometimes()
    seen = []
    with instrument(model, [StatsMonitor([Watch(modules="*", tensors=["input", "output"], stats="mean")])]) as watched:
        watched._run.hook_manager.join(beside)
        watched._run.hook_manager.begin_batch(0)
        for _ in range(12):
            run(model, watched, 1)
            seen.append([hook for module in model for hook in our_hooks(module)])
    first, *later = seen[1:]
    assert first and all(one is other for hooks in later for one, other in zip(first, hooks, strict=True))
    assert beside.began == [1, 2, 4, 5, 7, 8, 10, 11]


def test_hooks_of_many_kinds_of_steps_are_not_all_kept():
    model = net()
    rules = [Watch(modules="0", tensors="output", stats="mean", every_n_steps=[step]) for step in range(20)]
    with instrument(model, [StatsMonitor(rules)]) as watched:
        run(model, watched, 20)
        gc.collect()
        assert 0 < sum(type(each) in (PlainHook, ForwardHook) for each in gc.get_objects()) < 10


def test_hooks_for_several_kinds_of_steps_are_each_what_the_step_asks_for():
    model = net()
    rules = [
        Watch(modules="0", tensors="output", stats="mean", every_n_steps=2),
        Watch(modules="2", tensors="output", stats="mean", every_n_steps=3),
    ]
    with instrument(model, [StatsMonitor(rules)]) as watched:
        counts = []
        for _ in range(12):
            counts.append("".join(str(len(our_hooks(module))) for module in model))
            run(model, watched, 1)
    assert counts == ["000", "100", "001", "100", "000", "101"] * 2


def test_hooks_that_come_again_are_made_again_for_whoever_takes_part_then():
    model = net()
    rule = Watch(modules="0", tensors="output", stats="mean", every_n_steps=2)
    with instrument(model, [StatsMonitor([rule])]) as first:
        run(model, first, 2)
        with instrument(model, [StatsMonitor([rule])]) as second:
            for _ in range(2):
                model(torch.randn(3, 4)).sum().backward()
                first.step()
                second.step()
            assert second.latest["output_mean/0"] == first.latest["output_mean/0"]
        run(model, first, 2)
        assert first.view.step == 5


def test_a_loop_that_counts_back_has_the_same_due_steps_again():
    class Rare(Participant):
        schedule = EveryN(every=50)

        def step_key(self, step, stage):
            return "due" if self.schedule.due(step) else None

    hook_manager = HookManager(net())
    hook_manager.join(Rare())

    def acts(step):
        hook_manager.begin_batch(step)
        return bool(hook_manager.active)

    assert [step for step in [*range(150), *range(90, 160)] if acts(step)] == [49, 99, 149, 99, 149]
    hook_manager.close()


def test_the_record_of_an_instrument_is_of_the_last_watched_step():
    model = net()
    with instrument(model, [StatsMonitor([Watch(modules="*", tensors="output", stats="mean", every_n_steps=3)])]) as watched:
        found = []
        for _ in range(7):
            run(model, watched, 1)
            found.append((watched.view.step, watched.latest.get("output_mean/0")))
    assert [step for step, _ in found[2:]] == [2, 2, 2, 5, 5]
    assert found[2] == found[3] == found[4] != found[5] == found[6]


def test_the_row_index_is_made_once_and_a_layout_once_for_each_set_of_schedules(monkeypatch):
    made = []
    init = EntryLayout.__init__
    monkeypatch.setattr(EntryLayout, "__init__", lambda self, *args: made.append(self) or init(self, *args))
    model = net()
    with instrument(model, [StatsMonitor(RULES)]) as watched:
        run(model, watched, 5)
        rows = watched.view.rows
        _ = watched.latest
        run(model, watched, 1)
        assert watched.view.rows is rows
        _ = watched.latest
    assert len(made) == 1


def test_watching_alone_needs_no_measurement_objects(monkeypatch):
    made = []
    init = Measurement.__init__
    monkeypatch.setattr(Measurement, "__init__", lambda self, tensor: made.append(1) or init(self, tensor))
    model = net()
    with instrument(model, [StatsMonitor(RULES)]) as watched:
        run(model, watched, 1)  # The first step also notes the order of execution.
        made.clear()
        run(model, watched, 2)
    assert not made


def test_a_long_list_of_steps_is_hashed_once():
    class Counted(tuple):
        hashed = 0

        def __hash__(self):
            Counted.hashed += 1
            return super().__hash__()

    schedule = EveryN(steps=Counted(range(1000)))
    for step in range(10):
        assert schedule.due(step)
        assert schedule in frozenset({schedule})
    assert Counted.hashed == 1


def test_a_module_that_was_replaced_is_looked_up_once(monkeypatch):
    lookups = []
    named = refresh.named_modules
    monkeypatch.setattr(refresh, "named_modules", lambda model: lookups.append(1) or named(model))
    model = net()
    with instrument(model, [StatsMonitor(RULES)]) as watched:
        run(model, watched, 2)
        model(torch.randn(3, 4)).sum().backward()
        model[0] = nn.Linear(4, 4)
        watched._run.hook_manager.refresh.request()  # Lightning's callback does this at the start of an epoch.
        watched.step()
        run(model, watched, 3)
        assert "output_mean/0" in watched.latest
    assert len(lookups) == 1
