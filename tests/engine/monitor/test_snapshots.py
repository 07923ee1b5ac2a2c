"""Copies of parameters before an update: in memory that is kept, unless the parameter is another now."""

import torch
from torch import nn

from lightning_hooks.engine.monitor.snapshots import Snapshots


def test_the_memory_is_kept_from_step_to_step():
    weight, snapshots = nn.Parameter(torch.ones(3)), Snapshots()
    first = snapshots.take(0, [weight])[id(weight)]
    with torch.no_grad():
        weight.add_(1.0)
    assert first.tolist() == [1.0, 1.0, 1.0]
    assert not first.requires_grad
    second = snapshots.take(0, [weight])[id(weight)]
    assert second.data_ptr() == first.data_ptr()
    assert second.tolist() == [2.0, 2.0, 2.0]


def test_owners_do_not_share_copies():
    weight, snapshots = nn.Parameter(torch.ones(3)), Snapshots()
    outer = snapshots.take(0, [weight])[id(weight)]
    with torch.no_grad():
        weight.zero_()
    snapshots.take(1, [weight])
    assert outer.tolist() == [1.0, 1.0, 1.0]


def test_parameters_that_are_not_always_asked_for_keep_their_memory():
    one, other, snapshots = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2)), Snapshots()
    places = {id(p): copy.data_ptr() for p, copy in ((p, snapshots.take(0, [one, other])[id(p)]) for p in (one, other))}
    assert {key: copy.data_ptr() for key, copy in snapshots.take(0, [one]).items()} == {id(one): places[id(one)]}
    assert {key: copy.data_ptr() for key, copy in snapshots.take(0, [other, one]).items()} == places


def test_another_shape_or_type_takes_other_memory():
    weight, snapshots = nn.Parameter(torch.ones(4)), Snapshots()
    snapshots.take(0, [weight])
    for data in (torch.ones(2, 2), torch.ones(2, 2, dtype=torch.float64), torch.arange(6.0).view(2, 3).t()):
        weight.data = data
        assert torch.equal(snapshots.take(0, [weight])[id(weight)], data)


def test_subclasses_are_copied_anew():
    class Own(nn.Parameter):
        pass

    weight, snapshots = Own(torch.ones(3)), Snapshots()
    first, second = (snapshots.take(0, [weight])[id(weight)] for _ in range(2))
    assert first.data_ptr() != second.data_ptr()
