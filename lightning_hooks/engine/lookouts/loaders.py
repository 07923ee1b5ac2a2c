"""What a loader of training says of itself: whether it reads a stream, whether it shuffles, and how many batches it has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

_RANDOM: Final = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)


def is_stream(loader: Any) -> bool:
    """Whether a loader reads a stream, which has no indices."""
    return isinstance(loader, DataLoader) and isinstance(loader.dataset, IterableDataset)


def shuffles(loader: Any) -> bool:
    """Whether a loader draws the order of its samples anew in each epoch, as far as its sampler says.

    Example:
        >>> shuffles(DataLoader([1, 2, 3], shuffle=True)), shuffles(DataLoader([1, 2, 3]))
        (True, False)
    """
    if not isinstance(loader, DataLoader) or is_stream(loader):
        return False
    sampler = getattr(loader.batch_sampler, "sampler", loader.sampler)
    return isinstance(sampler, _RANDOM) or (isinstance(sampler, DistributedSampler) and sampler.shuffle)


def batches_of(loader: Any) -> int:
    """The number of batches of a loader; 0 if it reads a stream or nobody knows the number."""
    # Torch warns later of a stream whose length was asked for and that is longer.
    if is_stream(loader):
        return 0
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return 0


def begins_anew(loaders: Sequence[Any], trained: int) -> str:
    """That loaders do not go on within the epoch in which a checkpoint was saved, in words; empty if they may.

    Args:
        loaders: of the training that goes on.
        trained: the batches of the epoch that were trained when the checkpoint was saved; 0 between two epochs.

    Example:
        >>> begins_anew([DataLoader([1, 2, 3], shuffle=True)], 2)
        '2 batches of an epoch were trained, but the loader begins its order anew'
    """
    if not trained or not loaders or any(map(_may_go_on, loaders)):
        return ""
    known = "1 batch of an epoch was" if trained == 1 else f"{trained} batches of an epoch were"
    return f"{known} trained, but the loader begins its order anew"


def _may_go_on(loader: Any) -> bool:
    """Whether a loader may begin within its order: it has a state, or its sampler is not one of PyTorch."""
    if type(loader) is not DataLoader or is_stream(loader) or hasattr(loader, "load_state_dict"):
        return True
    sampler = getattr(loader.batch_sampler, "sampler", loader.sampler)
    known = (SequentialSampler, *_RANDOM, DistributedSampler)
    return type(sampler) not in known or hasattr(sampler, "load_state_dict") or type(loader.batch_sampler) is not BatchSampler
