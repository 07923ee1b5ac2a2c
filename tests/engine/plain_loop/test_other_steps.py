"""A block in which no step ended although an optimizer stepped that `instrument` was not given."""

from __future__ import annotations

import copy
import gc
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from lightning_hooks import ActivationTransforms, Apply, StatsMonitor, Watch, instrument
from lightning_hooks.transforms import Scale

RULES = [Watch(params="*", tensors="grad", stats="norm")]


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def train(model: nn.Module, *optimizers: torch.optim.Optimizer, steps: int = 3) -> None:
    for _ in range(steps):
        model(torch.ones(2, 3)).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


def hooks_of_all_optimizers() -> int:
    """The number of hooks that torch calls around the steps of every optimizer."""
    from torch.optim import optimizer

    return len(optimizer._global_optimizer_post_hooks) + len(optimizer._global_optimizer_pre_hooks)


OF_ANOTHER = (
    "It holds none of the parameters of Sequential, so the loop trains another model, such as a copy or one that was made "
    "again; give instrument the model and the optimizer of the loop$"
)
OF_THIS = "It holds parameters of Sequential; give it as optimizer=$"


@pytest.mark.parametrize("again", [copy.deepcopy, lambda model: net()], ids=["a copy", "rebuilt"])
def test_a_loop_that_trains_another_model_is_told_so(again: Callable[[nn.Module], nn.Module]) -> None:
    model = net()
    said = r"^instrument: no step ended, and nothing was measured: the optimizer given \(SGD\) never stepped, but another "
    with pytest.warns(UserWarning, match=f"{said}\\(Adam\\) stepped 3 times. {OF_ANOTHER}"):
        with instrument(model, [StatsMonitor(RULES)], optimizer=sgd(model)) as watched:
            other = again(model)
            train(other, torch.optim.Adam(other.parameters()))
    assert watched.view.step == -1 and watched.latest == {}


def test_a_loop_whose_optimizer_was_made_again_is_told_to_give_that_one() -> None:
    model = net()
    said = r"the optimizers given \(SGD, SGD\) never stepped, but another \(AdamW\) stepped once. " + OF_THIS
    with pytest.warns(UserWarning, match=said):
        with instrument(model, [StatsMonitor(RULES)], optimizer=[sgd(model[0]), sgd(model[2])]):
            train(model, torch.optim.AdamW(model.parameters()), steps=1)


@pytest.mark.parametrize("shares", [True, False])
def test_a_loop_without_an_optimizer_that_never_ends_a_step_is_told_both_ways(shares: bool) -> None:
    model = net()
    other = model if shares else net()
    said = r"neither optimizer= was given nor step\(\) called, but one \(SGD\) stepped 3 times. "
    with pytest.warns(UserWarning, match=said + (OF_THIS if shares else OF_ANOTHER)):
        with instrument(model, [StatsMonitor(RULES)]):
            train(other, sgd(other))


def test_the_one_that_shares_parameters_is_named_of_several() -> None:
    model, other = net(), net()
    with pytest.warns(UserWarning, match=r"but another \(Adam\) stepped 2 times. " + OF_THIS):
        with instrument(model, [StatsMonitor(RULES)], optimizer=sgd(model)):
            train(other, sgd(other), steps=5)
            train(model, torch.optim.Adam(model.parameters()), steps=2)


def test_a_compiled_step_of_another_optimizer_counts() -> None:
    model, other = net(), net()
    optimizer = torch.optim.Adam(other.parameters())
    with pytest.warns(UserWarning, match=r"but another \(Adam\) stepped 3 times"):
        with instrument(model, [StatsMonitor(RULES)], optimizer=sgd(model)):
            step = torch.compile(optimizer.step, backend="eager")
            for _ in range(3):
                other(torch.ones(2, 3)).sum().backward()
                step()


def no_loop(model: nn.Module, given: Any) -> None:
    """An empty block."""


def evaluates(model: nn.Module, given: Any) -> None:
    model.eval()
    with torch.no_grad():
        model(torch.ones(2, 3))


def begins_a_step(model: nn.Module, given: Any) -> None:
    model(torch.ones(2, 3)).sum().backward()


def trains_both(model: nn.Module, given: Any) -> None:
    other = net()
    train(other, sgd(other))
    train(model, given, steps=1)
    train(other, sgd(other))


def trains_in_another_thread(model: nn.Module, given: Any) -> None:
    other = net()
    thread = threading.Thread(target=train, args=(other, sgd(other)))
    thread.start()
    thread.join()


@pytest.mark.parametrize("loop", [no_loop, evaluates, begins_a_step, trains_both, trains_in_another_thread])
def test_nothing_is_said_where_nothing_is_wrong(loop: Callable[[nn.Module, Any], None]) -> None:
    model = net()
    optimizer = sgd(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with instrument(model, [StatsMonitor(RULES)], optimizer=optimizer):
            loop(model, optimizer)
    assert hooks_of_all_optimizers() == 0


def test_nothing_is_said_of_an_exception_of_steps_by_hand_and_of_rules_that_need_no_step() -> None:
    model, other = net(), net()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ZeroDivisionError), instrument(model, [StatsMonitor(RULES)], optimizer=sgd(model)):
            train(other, sgd(other))
            raise ZeroDivisionError
        with instrument(model, [StatsMonitor(RULES)]) as watched:
            train(model, sgd(model), steps=1)
            watched.step()
            train(model, sgd(model), steps=1)
        with instrument(model, [ActivationTransforms([Apply(Scale(2.0), modules="0", tensor="output")])]):
            train(other, sgd(other))
    assert hooks_of_all_optimizers() == 0


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_step_of_the_optimizer_or_a_lost_block_removes_the_hook_from_all_optimizers(is_lost: bool) -> None:
    handle = register_optimizer_step_post_hook(lambda *_: None)  # one of the user's own
    model = net()
    optimizer = sgd(model)
    watched = instrument(model, [StatsMonitor(RULES)], optimizer=optimizer).__enter__()
    assert hooks_of_all_optimizers() == 2
    if not is_lost:
        train(model, optimizer, steps=1)
        assert hooks_of_all_optimizers() == 1 and watched.view.step == 0
        watched.__exit__(None, None, None)
    del watched, optimizer
    gc.collect()
    assert hooks_of_all_optimizers() == 1
    handle.remove()
