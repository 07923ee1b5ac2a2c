"""Copies of parameters before an update: memory is reused from step to step, unless a parameter was replaced."""

import gc
import weakref

import torch
from torch import nn

from lightning_hooks.engine.watching.snapshots import Snapshots


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
