import random
from types import MappingProxyType

import numpy as np
import pytest
import torch
from torch import nn

from lightning_hooks.snapshot.reach import ReachOfData
from lightning_hooks.snapshot.snapshot import Snapshot


class Memory:
    def __init__(self):
        self.queue, self.position = torch.zeros(3), 0


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(2, 2), nn.BatchNorm1d(2)
        self.seen, self.by_name, self.memory = [1], {"a": torch.ones(2)}, Memory()
        self.chance, self.numpy_chance, self.python_chance = torch.Generator(), np.random.default_rng(0), random.Random(0)
        self.array, self.names = np.zeros(2), {"x"}


def change(model):
    with torch.no_grad():
        model.layer.weight.add_(1)
        model.layer.bias.data = torch.full((2,), 9.0)
    model.layer.weight.grad = torch.ones(2, 2)
    model.layer.bias.requires_grad_(False)
    model.norm(torch.randn(4, 2))
    model.eval()
    model.seen.append(2)
    model.by_name["a"].mul_(3)
    model.by_name["b"] = 1
    model.memory.queue[0], model.memory.position = 5, 7
    model.chance.manual_seed(3)
    model.numpy_chance.random()
    model.python_chance.random()
    model.array[0] = 1
    model.names.add("y")
    model.added = nn.Linear(1, 1)
    model.layer.weight.register_hook(lambda grad: grad)
    model.layer.register_forward_hook(lambda *args: None)


def state(model):
    return (
        {name: value.tolist() for name, value in model.state_dict().items()},
        [(each.requires_grad, each.grad, bool(each._backward_hooks)) for each in model.parameters()],
        [(each.training, len(each._forward_hooks)) for each in model.modules()],
        (model.seen, {name: torch.as_tensor(each).tolist() for name, each in model.by_name.items()}),
        (model.memory.queue.tolist(), model.memory.position, model.array.tolist(), model.names, hasattr(model, "added")),
        (model.chance.get_state().tolist(), model.numpy_chance.bit_generator.state, model.python_chance.getstate()),
    )


def test_everything_that_a_model_holds_is_restored_and_every_object_stays():
    torch.manual_seed(0)
    model = Model()
    before, parameters, seen = repr(state(model)), [*map(id, model.parameters())], model.seen
    snapshot = Snapshot([model])
    for _ in range(2):
        change(model)
        assert repr(state(model)) != before
        snapshot.restore()
        assert repr(state(model)) == before
    assert [*map(id, model.parameters())] == parameters and model.seen is seen


def test_a_gradient_is_the_same_object_with_the_same_numbers_after_steps_without_it():
    layer = nn.Linear(2, 1)
    layer(torch.ones(1, 2)).sum().backward()
    grad = layer.weight.grad
    snapshot = Snapshot([layer])
    snapshot.clear_gradients()
    layer(torch.ones(1, 2)).sum().backward()
    assert layer.weight.grad is not grad
    snapshot.restore()
    assert layer.weight.grad is grad and grad.tolist() == [[1.0, 1.0]]


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD, torch.optim.LBFGS])
def test_an_optimizer_goes_on_as_if_nothing_had_happened(kind):
    torch.manual_seed(0)
    layer = nn.Linear(2, 1)
    optimizer = kind(layer.parameters(), lr=0.1)

    def step():
        def closure():
            optimizer.zero_grad()
            loss = layer(torch.ones(1, 2)).square().sum()
            loss.backward()
            return loss

        optimizer.step(closure)
        return layer.weight.tolist()

    step()
    snapshot = Snapshot([layer, optimizer])
    once = step()
    step()
    optimizer.param_groups[0]["lr"] = 5.0
    snapshot.restore()
    assert step() == once


def test_of_a_data_set_the_generators_are_restored_and_its_numbers_are_not_kept():
    class Data:
        def __init__(self):
            self.numbers, self.chance = torch.zeros(2), torch.Generator()

    data = Data()
    snapshot, state = Snapshot([data], ReachOfData()), data.chance.get_state()
    data.numbers[0] = 1
    torch.rand(1, generator=data.chance)
    data.split = "train"
    snapshot.restore()
    assert data.chance.get_state().equal(state) and data.numbers.tolist() == [1, 0] and not hasattr(data, "split")


def test_a_deep_model_is_restored_to_its_last_layer():
    last = nn.Linear(2, 2)
    model = last
    for _ in range(120):
        model = nn.Sequential(model)
    before, snapshot = last.weight.detach().clone(), Snapshot([model])
    nn.init.zeros_(last.weight)
    last.calls = 1
    snapshot.restore()
    assert last.weight.equal(before) and not hasattr(last, "calls")


class Shape(tuple):
    """A tuple of a class of its own, whose objects have attributes."""


def test_what_tuples_of_other_classes_and_proxies_of_mappings_hold_is_restored_in_place():
    layer, held = nn.Linear(1, 1), [torch.ones(1), torch.ones(1)]
    layer.held = [Shape(held[:1]), MappingProxyType({"x": held[1]})]
    snapshot = Snapshot([layer])
    snapshot.lend()
    for tensor in held:
        tensor.zero_()
    snapshot.restore()
    assert [tensor.item() for tensor in held] == [1, 1] and layer.held[0][0] is held[0]
