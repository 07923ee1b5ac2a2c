"""What a loader of training says of itself: whether it reads a stream, whether it shuffles, and how many batches it has."""

from __future__ import annotations

from typing import Any, Final

from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SubsetRandomSampler, WeightedRandomSampler
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
