"""The indices of a batch are those with which a loader has read it, or none if that is not certain."""

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, TensorDataset

from lightning_hooks.engine.lookouts.sampling import indices_of

ORIGINAL = BatchSampler.__iter__


@pytest.fixture(autouse=True)
def given_back():
    yield
    assert BatchSampler.__iter__ is ORIGINAL


def loader_of(**options):
    return DataLoader(TensorDataset(torch.arange(22)), batch_size=4, shuffle=True, **options)


def assert_exact(loader, indices):
    for (batch,) in loader:
        assert indices.take(len(batch)) == tuple(batch.tolist())


@pytest.mark.parametrize("workers", [0, 2])
def test_the_indices_are_those_of_the_batch_in_each_pass(workers):
    loader = loader_of(num_workers=workers)
    indices = indices_of(loader)
    assert_exact(loader, indices)
    assert_exact(loader, indices)
    indices.remove()


def test_after_a_batch_that_nobody_saw_nothing_is_known_until_the_next_pass():
    loader = loader_of()
    indices = indices_of(loader)
    for number, (batch,) in enumerate(loader):
        known = indices.take(len(batch)) if number != 1 else None
        assert known == (tuple(batch.tolist()) if number == 0 else None)
    assert_exact(loader, indices)
    indices.remove()


def test_two_passes_at_once_are_not_told_apart():
    loader = loader_of()
    indices = indices_of(loader)
    first = iter(loader)
    next(first)
    next(iter(loader))
    assert indices.take(4) is None
    del first
    assert_exact(loader, indices)
    indices.remove()


def test_another_loader_is_not_noted():
    indices, other = indices_of(loader_of()), loader_of()
    next(iter(other))
    assert indices.take(4) is None
    indices.remove()
    indices.remove()


class Own(BatchSampler):
    def __iter__(self):
        yield from super().__iter__()


@pytest.mark.parametrize(
    "loader",
    [
        None,
        DataLoader(TensorDataset(torch.arange(4)), batch_size=None),
        DataLoader(TensorDataset(torch.arange(4)), batch_sampler=Own(range(4), 2, False)),
        DataLoader(TensorDataset(torch.arange(4)), batch_sampler=[[0, 1], [2, 3]]),
    ],
    ids=["none", "without batches", "another method", "a list"],
)
def test_other_loaders_have_no_indices(loader):
    assert indices_of(loader) is None


def test_a_wrapper_of_somebody_else_is_left_and_ours_passes_through():
    loader = loader_of()
    indices = indices_of(loader)
    ours = BatchSampler.__iter__

    def theirs(self):
        yield from ours(self)

    BatchSampler.__iter__ = theirs
    try:
        indices.remove()
        assert BatchSampler.__iter__ is theirs
        assert len(list(loader)) == 6
        again = indices_of(loader)
        assert len(list(loader)) == 6
        again.remove()
    finally:
        BatchSampler.__iter__ = ours
        indices_of(loader_of()).remove()
