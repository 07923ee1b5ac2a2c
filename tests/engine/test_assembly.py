"""A run that is assembled from contributions: one table a stage, and each owner by itself in it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_hooks import Apply, StepConsumer, StepView, Watch
from lightning_hooks.engine.assembly import Assembly, Contribution, assemble
from lightning_hooks.engine.changing.participant import TransformParticipant
from lightning_hooks.engine.changing.resolve import resolve_applies
from lightning_hooks.engine.participants.participant import Participant
from lightning_hooks.engine.running.run import Run
from lightning_hooks.plan.resolve import resolve
from lightning_hooks.records.consumer import Publisher
from lightning_hooks.rules.schedule import EveryN
from lightning_hooks.transforms import Scale

GRADS = Watch(params="*", tensors="grad", stats="norm")


class Keep(StepConsumer):
    """Keeps the views of an owner; raises at a step."""

    def __init__(self, fails_at: int = -1) -> None:
        self.views: list[StepView] = []
        self.fails_at = fails_at

    def consume(self, view: StepView) -> None:
        if view.step == self.fails_at:
            raise OSError("no space")
        self.views.append(view)

    def norms(self, tensor: str = "grad") -> list[float]:
        return [round(float(view.stat(tensor, "norm").values[0]), 6) for view in self.views]


def net() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(3, 1, bias=False)


def owner(model: nn.Module, keep: Keep, *rules: Watch, every: int = 1, **options: Any) -> Contribution:
    plan = resolve(model, rules, EveryN(every), with_loss=True)
    return Contribution("StatsMonitor", plans={"train": plan}, publisher=Publisher([keep]), **options)


def scaling(model: nn.Module, factor: float) -> Contribution:
    bound = resolve_applies(model, [Apply(Scale(factor), params="*")])
    return Contribution("GradientTransforms", participants=[TransformParticipant(bound)])


class Loop:
    """The least that drives an assembly: a loop of its own around one optimizer."""

    def __init__(self, model: nn.Module, *contributions: Contribution) -> None:
        self.model, self.run = model, Run(model)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.assembly: Assembly = assemble(contributions)
        self.participants: list[Participant] = [p for each in self.assembly.assembled for p in each.participants]
        for participant in [*self.assembly.observers, *self.participants]:
            self.run.join(participant)

    def steps(self, count: int, first: int = 0, loss_scale: float = 1.0) -> None:
        manager, producer = self.run.hook_manager, self.assembly.producers["train"]
        for step in range(first, first + count):
            manager.begin_batch(step)
            self.optimizer.zero_grad()
            self.model(torch.ones(2, 3)).sum().backward()
            manager.before_step([*self.participants, producer.observer], self.optimizer)
            for phase in ("final", "before_update"):
                manager.phase(phase, self.optimizer)
            self.optimizer.step()
            manager.phase("after_update", self.optimizer)
            manager.end_batch()
            if producer.publishes:
                producer.end(step, manager.take_reports)
            else:
                producer.agree()
            manager.end_step()


def test_each_distinct_row_is_measured_once() -> None:
    model, one, two = net(), Keep(), Keep()
    loop = Loop(model, owner(model, one, GRADS), owner(model, two, GRADS, Watch(params="*", tensors="update", stats="norm")))
    loop.steps(2)
    (observer,) = loop.assembly.observers
    assert [row.tensor for row in observer.plan.rows] == ["grad", "loss", "update"]
    assert one.norms() == two.norms() and len(one.norms()) == 2
    assert one.views[0].rows.tensors == ("grad", "loss") and two.views[0].rows.tensors == ("grad", "update", "loss")


def test_a_gradient_is_read_in_the_turn_of_its_owner() -> None:
    model, keeps = net(), [Keep() for _ in range(3)]
    before, after, last = (owner(model, keep, GRADS) for keep in keeps)
    loop = Loop(model, before, scaling(model, 0.5), after, scaling(model, 0.5), last)
    loop.steps(1)
    (whole,), (half,), (quarter,) = (keep.norms() for keep in keeps)
    assert half == pytest.approx(whole / 2) and quarter == pytest.approx(whole / 4)
    assert [row.tensor for row in loop.assembly.observers[0].plan.rows].count("grad") == 3


def test_a_callback_of_others_between_two_owners_begins_another_turn() -> None:
    model, one, two = net(), Keep(), Keep()
    other = Contribution(may_change_gradients=True)
    assembly = assemble([owner(model, one, GRADS), other, owner(model, two, GRADS)])
    assert [row.tensor for row in assembly.observers[0].plan.rows].count("grad") == 2


def test_an_owner_has_only_what_is_due_for_it() -> None:
    model, often, seldom = net(), Keep(), Keep()
    param = Watch(params="*", tensors=["grad", "param"], stats="norm")
    loop = Loop(
        model,
        owner(model, often, param),
        owner(model, seldom, GRADS, Watch(params="*", tensors="param", stats="norm", every_n_steps=4), every=2),
    )
    loop.steps(4)
    assert [view.step for view in often.views] == [0, 1, 2, 3] and [view.step for view in seldom.views] == [1, 3]
    series = [view.stat("param", "norm") for view in seldom.views]
    assert [bool(each.measured[0]) for each in series] == [False, True]
    assert "run/param_norm" not in seldom.views[0].summaries and "run/param_norm" in often.views[1].summaries


def test_an_error_of_a_consumer_ends_its_owner_alone() -> None:
    model, fails, goes_on = net(), Keep(fails_at=1), Keep()
    loop = Loop(model, owner(model, fails, GRADS, on_error="warn"), owner(model, goes_on, GRADS))
    with pytest.warns(UserWarning, match="a StatsMonitor stopped watching after OSError: no space; training continues"):
        loop.steps(4)
    assert [view.step for view in fails.views] == [0] and [view.step for view in goes_on.views] == [0, 1, 2, 3]


def test_an_error_of_a_statistic_ends_the_owners_that_ask_for_it() -> None:
    model, fails, goes_on = nn.Sequential(net()), Keep(), Keep()

    def broken(tensor: Tensor) -> Tensor:
        raise ValueError("mine")

    asks = owner(model, fails, Watch(modules="0", tensors="output", stats=["mean", broken]), on_error="warn")
    loop = Loop(model, asks, owner(model, goes_on, Watch(modules="0", tensors="output", stats="mean")))
    with pytest.warns(UserWarning, match="stopped watching after ValueError: mine"):
        loop.steps(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loop.steps(2, first=1)
    assert [view.step for view in goes_on.views] == [0, 1, 2]
    assert all(view.stat("output", "mean").measured.all() for view in goes_on.views)


def test_the_error_of_an_owner_that_raises_is_raised() -> None:
    model, fails, goes_on = net(), Keep(fails_at=0), Keep()
    loop = Loop(model, owner(model, fails, GRADS), owner(model, goes_on, GRADS))
    with pytest.raises(OSError, match="no space"):
        loop.steps(1)
    assert [view.step for view in goes_on.views] == [0]


def test_longer_intervals_are_those_of_one_owner() -> None:
    model, one, two = net(), Keep(), Keep()
    loop = Loop(model, owner(model, one, GRADS), owner(model, two, GRADS))
    loop.assembly.observers[0].shares[0].widen(2)
    loop.steps(4)
    assert [view.step for view in one.views] == [1, 3] and [view.step for view in two.views] == [0, 1, 2, 3]


def test_gradients_are_compared_with_those_that_their_owner_has_measured() -> None:
    def cosines(*others: int) -> Mapping[int, float]:
        model, keep = net(), Keep()
        cosine = Watch(params="*", tensors="grad", stats="cosine")
        given = [owner(model, keep, cosine, every=2), *(owner(model, Keep(), cosine, every=every) for every in others)]
        loop = Loop(model, *given)
        for step in range(6):
            with torch.no_grad():
                model.weight.add_(torch.randn(1, 3, generator=torch.Generator().manual_seed(step)))
            loop.steps(1, first=step)
        return {view.step: float(view.stat("grad", "cosine").values[0]) for view in keep.views}

    alone = cosines()
    assert [*alone] == [1, 3, 5]
    assert str(cosines(1)) == str(alone) == str(cosines(1, 3))


def test_an_owner_that_is_removed_is_not_due() -> None:
    model, one, two = net(), Keep(), Keep()
    loop = Loop(model, owner(model, one, GRADS), owner(model, two, GRADS))
    loop.steps(1)
    loop.participants[0].is_absent = True
    loop.steps(1, first=1)
    loop.participants[0].is_absent = False
    loop.steps(1, first=2)
    assert [view.step for view in one.views] == [0, 2] and [view.step for view in two.views] == [0, 1, 2]
    assert two.norms()[0] == two.norms()[1]
