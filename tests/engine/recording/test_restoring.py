"""After a step was run again, nothing of the model, its gradients, its optimizer or the generators differs."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lightning_hooks.engine.recording import restoring
from lightning_hooks.engine.recording.restoring import restored


class Meter:
    """A mean over batches, as many trainings have one."""

    def __init__(self) -> None:
        self.total, self.values, self.owner = 0.0, [1.0], self

    def note(self, value: float) -> None:
        self.total += value
        self.values.append(value)


class Model(nn.Module):
    """A model with everything that a step changes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm, self.drop = nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5)
        self.frozen = nn.Linear(3, 3).requires_grad_(False)
        self.outputs: list[Tensor] = []
        self.counts = {"calls": 0}
        self.total = torch.zeros(1)
        self.number = 0
        self.history: dict[str, Any] = {"losses": [torch.zeros(1)], "recent": deque([1.0], maxlen=3), "seen": {1}}
        self.meter = Meter()
        self.generator = torch.Generator().manual_seed(3)

    def forward(self, x: Tensor) -> Tensor:
        output = self.drop(
            self.norm(self.layer(x + torch.randn(3, generator=self.generator) + random.random() + np.random.rand()))
        )
        self.outputs.append(output)
        self.counts["calls"] += 1
        self.total += 1
        self.number += 1
        self.history["losses"].append(output)
        self.history["losses"][0].add_(1)
        self.history["recent"].append(2.0)
        self.history["seen"].add(2)
        self.history["new"] = 1
        self.meter.note(3.0)
        self.new_attribute = output
        return output


def state_of(model: Model, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {
        "state": {name: each.clone() for name, each in model.state_dict().items()},
        "grads": [None if each.grad is None else each.grad.clone() for each in model.parameters()],
        "flags": [each.training for each in model.modules()] + [each.requires_grad for each in model.parameters()],
        "optimizer": [each.clone() for state in optimizer.state.values() for each in state.values()],
        "attributes": (list(model.outputs), dict(model.counts), model.total.clone(), model.number),
        "names": sorted(vars(model)),
        "history": {key: each.copy() if hasattr(each, "copy") else each for key, each in model.history.items()},
        "first loss": model.history["losses"][0].clone(),
        "meter": (model.meter.total, list(model.meter.values)),
        "groups": [{key: each for key, each in group.items() if key != "params"} for group in optimizer.param_groups],
        "random": (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy(), model.generator.get_state()),
    }


def assert_same(first: Any, second: Any) -> None:
    if isinstance(first, Tensor):
        assert torch.equal(first, second)
    elif isinstance(first, np.ndarray):
        assert np.array_equal(first, second)
    elif isinstance(first, dict):
        assert first.keys() == second.keys()
        for key in first:
            assert_same(first[key], second[key])
    elif isinstance(first, (list, tuple)):
        assert len(first) == len(second)
        for one, other in zip(first, second, strict=True):
            assert_same(one, other)
    else:
        assert first == second


@pytest.mark.parametrize("raises", [False, True])
def test_a_step_and_its_update_leave_everything_as_it_was(raises: bool) -> None:
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    model(torch.randn(4, 3)).square().sum().backward()
    optimizer.step()
    before = state_of(model, optimizer)
    objects = [id(each.grad) for each in model.parameters()], [id(each) for each in model.parameters()]
    try:
        with restored(model, [optimizer], updates=True):
            assert all(each.grad is None for each in model.parameters())
            model.eval(), model.train(), model.drop.eval()
            model(torch.randn(4, 3)).square().sum().backward()
            optimizer.param_groups[0]["lr"] = 7.0
            optimizer.step()
            model.norm.running_mean = torch.ones(3)
            assert not torch.equal(model.layer.weight, before["state"]["layer.weight"])
            if raises:
                raise RuntimeError("the step ends")
    except RuntimeError:
        assert raises
    assert_same(before, state_of(model, optimizer))
    assert ([id(each.grad) for each in model.parameters()], [id(each) for each in model.parameters()]) == objects


def test_a_state_that_the_block_creates_is_gone() -> None:
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    with restored(model, [optimizer], updates=True):
        model(torch.randn(4, 3)).sum().backward()
        optimizer.step()
    assert not optimizer.state and all(each.grad is None for each in model.parameters())


def test_parameters_are_not_written_without_an_update() -> None:
    model = Model()
    versions = [each._version for each in model.parameters()]
    with restored(model):
        model(torch.randn(4, 3)).sum().backward()
    assert [each._version for each in model.parameters()] == versions


def test_the_scaler_and_other_holders_of_state_are_restored() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    other = torch.optim.lr_scheduler.StepLR(torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=1.0), 1)
    before = scaler.state_dict()
    with restored(Model(), scaler=scaler, extra=[other]):
        scaler.scale(torch.ones(1))
        scaler.update(2.0)
        other.last_epoch = 9
    assert scaler.state_dict() == before and other.last_epoch == 0


def test_statistics_of_a_batch_norm_that_are_nan_stay_nan() -> None:
    model = Model()
    model.norm.running_mean.fill_(float("nan"))
    with restored(model):
        model(torch.randn(4, 3))
    assert model.norm.running_mean.isnan().all() and int(model.norm.num_batches_tracked) == 0


def test_every_gradient_is_taken_off_in_a_module_that_holds_more_than_is_kept_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restoring._ReachOfStep, "values", 50)
    model = nn.Module()
    model.many = nn.ParameterList(nn.Parameter(torch.ones(())) for _ in range(101))
    last = model.many[100]
    last.grad = grad = torch.ones(())
    with restored(model):
        assert last.grad is None
    assert last.grad is grad


def test_a_step_changes_tensors_in_tuples_and_dictionaries_of_a_class_of_its_own() -> None:
    class Counts(dict):
        pass

    model = nn.Linear(1, 1)
    model.memory, model.counts = (torch.zeros(1),), Counts(calls=0)
    with restored(model):
        model.memory[0].add_(1)
        model.counts["calls"] += 1
    assert model.memory[0].item() == 0 and model.counts == {"calls": 0}
