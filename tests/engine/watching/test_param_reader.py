"""Copies of parameters before an update: memory is reused from step to step, unless a parameter was replaced."""

import gc
import weakref

import pytest
import torch
from torch import nn

from lightning_hooks import Watch, instrument
from lightning_hooks.engine.watching.param_reader import Snapshots


def sgd():
    return torch.optim.SGD([nn.Parameter(torch.ones(1))])


def test_the_memory_is_kept_from_step_to_step():
    weight, snapshots, optimizer = nn.Parameter(torch.ones(3)), Snapshots(), sgd()
    (first,) = snapshots.take(optimizer, [weight])
    with torch.no_grad():
        weight.add_(1.0)
    assert first.tolist() == [1.0, 1.0, 1.0]
    assert not first.requires_grad
    (second,) = snapshots.take(optimizer, [weight])
    assert second.data_ptr() == first.data_ptr()
    assert second.tolist() == [2.0, 2.0, 2.0]


def test_optimizers_do_not_share_copies():
    weight, snapshots, optimizer = nn.Parameter(torch.ones(3)), Snapshots(), sgd()
    (outer,) = snapshots.take(optimizer, [weight])
    with torch.no_grad():
        weight.zero_()
    snapshots.take(sgd(), [weight])
    assert outer.tolist() == [1.0, 1.0, 1.0]


def test_copies_go_with_their_optimizer():
    weight, snapshots, optimizer = nn.Parameter(torch.ones(3)), Snapshots(), sgd()
    copy = weakref.ref(snapshots.take(optimizer, [weight])[0])
    del optimizer
    gc.collect()
    assert copy() is None


def test_parameters_that_are_not_always_asked_for_keep_their_memory():
    one, other, snapshots, optimizer = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2)), Snapshots(), sgd()
    first, second = (copy.data_ptr() for copy in snapshots.take(optimizer, [one, other]))
    assert [copy.data_ptr() for copy in snapshots.take(optimizer, [one])] == [first]
    assert [copy.data_ptr() for copy in snapshots.take(optimizer, [other, one])] == [second, first]


def test_another_shape_or_type_takes_other_memory():
    weight, snapshots, optimizer = nn.Parameter(torch.ones(4)), Snapshots(), sgd()
    snapshots.take(optimizer, [weight])
    for data in (torch.ones(2, 2), torch.ones(2, 2, dtype=torch.float64), torch.arange(6.0).view(2, 3).t()):
        weight.data = data
        assert torch.equal(snapshots.take(optimizer, [weight])[0], data)


def test_subclasses_are_cloned_each_time():
    class Own(nn.Parameter):
        pass

    weight, snapshots, optimizer = Own(torch.ones(3)), Snapshots(), sgd()
    first, second = (snapshots.take(optimizer, [weight])[0] for _ in range(2))
    assert first.data_ptr() != second.data_ptr()


def test_rows_follow_what_an_optimizer_holds_and_which_parameters_have_a_gradient():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.5)
    rule = Watch(params="*.weight", tensors=["param", "grad", "update"], stats="norm")
    with instrument(model, watch=[rule], optimizer=optimizer) as watched:

        def step(loss):
            optimizer.zero_grad()
            loss.backward()
            gradients = [None if p.grad is None else p.grad.clone() for p in (model[0].weight, model[1].weight)]
            optimizer.step()
            values = {tag: value for tag, value in watched.compute().items() if not tag.startswith("hooks/")}
            return values, gradients

        values, (first, _) = step(model(torch.ones(1, 2)).sum())
        assert values.keys() == {f"{tensor}_norm/0.weight" for tensor in ("param", "grad", "update")}
        torch.testing.assert_close(values["update_norm/0.weight"], 0.5 * first.double().norm().item())
        optimizer.add_param_group({"params": [*model[1].parameters()], "lr": 0.25})
        values, (first, second) = step(model(torch.ones(1, 2)).sum())
        assert len(values) == 6
        torch.testing.assert_close(values["update_norm/1.weight"], 0.25 * second.double().norm().item())
        values, (first, _) = step(model[0](torch.ones(1, 2)).sum())  # The second layer has no gradient in this step.
        assert "grad_norm/1.weight" not in values and values["update_norm/1.weight"] == 0.0
        torch.testing.assert_close(values["grad_norm/0.weight"], first.double().norm().item())


def test_only_parameters_that_an_optimizer_still_has_after_its_step_have_an_update():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    group = optimizer.param_groups[0]

    def step(change):
        def hook(*_):
            change()

        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        handle = optimizer.register_step_pre_hook(hook)  # Torch calls it after the copies are made, as it calls a closure.
        optimizer.step()
        handle.remove()
        return {tag: value for tag, value in watched.compute().items() if not tag.startswith("hooks/")}

    with instrument(model, watch=[Watch(params="*.weight", tensors="update", stats="norm")], optimizer=optimizer) as watched:
        values = step(lambda: model[0].weight.requires_grad_(False))
        assert values == {"update_norm/1.weight": pytest.approx(0.5 * model[1].weight.grad.norm().item())}
        # The parameter was frozen when copies were made, so it has none.
        assert step(lambda: model[0].weight.requires_grad_(True)).keys() == {"update_norm/1.weight"}
        assert step(lambda: group.update(params=group["params"][:2])).keys() == {"update_norm/0.weight"}
        assert step(lambda: group.update(params=[nn.Parameter(torch.ones(2))])) == {}
