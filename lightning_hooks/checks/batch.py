"""Batches: copies of a batch, and how many samples it has."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightning_hooks.nested.rebuilding import map_batch
from lightning_hooks.nested.tensors import named_tensors, tensors_of


def changed_copy(batch: Any, change: Callable[[str, Tensor], Any]) -> Any:
    """A copy of a batch, or of the arguments of a call, in which each tensor is what `change` returns of its name and itself.

    An object without tensors that cannot be copied stays itself.

    Raises:
        UnsupportedError: an object with tensors cannot be copied; the message names it.
    """
    return map_batch(change, batch, other=_copied_object)


def copied(batch: Any) -> Any:
    """A copy that a training step may change, as of `changed_copy`."""
    return changed_copy(batch, lambda _, tensor: tensor.detach().clone())


def _copied_object(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception:  # noqa: BLE001 - an object of another library may refuse to be copied in any way
        return value


def is_float(tensor: Tensor) -> bool:
    """Whether a tensor can have a gradient that can be computed with; of numbers in one byte torch has no arithmetic."""
    return (tensor.is_floating_point() and tensor.element_size() > 1) or tensor.is_complex()


def kind_of(tensor: Tensor) -> str:
    """`sparse`, `nested` or `quantized`; empty for a tensor that stores all its numbers in rows of one length.

    Example:
        >>> kind_of(torch.eye(2).to_sparse()), kind_of(torch.eye(2))
        ('sparse', '')
    """
    if tensor.is_nested:
        return "nested"
    return "quantized" if tensor.is_quantized else "" if tensor.layout is torch.strided else "sparse"


def special(batch: Any, path: str = "batch") -> str:
    """Which tensor of a batch is sparse, nested or quantized, as a clause; empty if none is.

    Example:
        >>> special([torch.ones(2), torch.eye(2).to_sparse()])
        'batch[1] is a sparse tensor'
    """
    return next(
        (f"{where} is a {kind_of(tensor)} tensor" for where, tensor in named_tensors(batch, path) if kind_of(tensor)), ""
    )


class Samples(NamedTuple):
    """The samples of a batch.

    Args:
        size: how many.
        is_sure: whether a tensor with one number for each sample says that the first dimension holds the samples.
    """

    size: int
    is_sure: bool


def samples_of(batch: Any) -> Samples | str:
    """The samples of a batch, or the reason why they are not known.

    Example:
        >>> samples_of((torch.ones(4, 3), torch.ones(4)))
        Samples(size=4, is_sure=True)
        >>> samples_of((torch.ones(4, 3), torch.ones(2, 9)))
        'the tensors of the batch have different first dimensions (4 and 2)'
    """
    if special(batch):
        return f"{special(batch)}, of which one sample cannot be told from another"
    tensors = [tensor for tensor in tensors_of(batch) if tensor.dim() > 0]
    if not tensors:
        return "the batch holds no tensor with a dimension for samples"
    counts = sorted({int(tensor.shape[0]) for tensor in tensors}, reverse=True)
    if len(counts) > 1:
        return f"the tensors of the batch have different first dimensions ({' and '.join(map(str, counts[:3]))})"
    if counts[0] < 2:
        return "the batch has one sample"
    others = {size for tensor in tensors for size in _sizes_beside_features(tensor)}
    return Samples(counts[0], any(tensor.dim() == 1 for tensor in tensors) and counts[0] not in others)


def _sizes_beside_features(tensor: Tensor) -> Sequence[int]:
    """The sizes after the first one, without that of the features: the last dimension of numbers, none of indices."""
    return tensor.shape[1:-1] if tensor.is_floating_point() else tensor.shape[1:]


def square_tensors(batch: Any, size: int) -> list[str]:
    """The paths of the tensors [size, size] of a batch, which may relate rows with each other as an adjacency matrix does."""
    return [path for path, tensor in named_tensors(batch) if tuple(tensor.shape) == (size, size)]


def first_samples(batch: Any, count: int, most: int) -> Any:
    """The first samples of a batch.

    Args:
        batch: in which each tensor has the samples in its first dimension.
        count: of its samples.
        most: to keep.
    """
    return some_samples(batch, count, slice(most))


def some_samples(batch: Any, count: int, kept: slice) -> Any:
    """Those samples of a batch that a slice chooses; other arguments as of `first_samples`."""

    def cut(_: str, tensor: Tensor) -> Tensor:
        is_cut = tensor.dim() > 0 and tensor.shape[0] == count
        return (tensor[kept] if is_cut else tensor).detach().clone()

    return _cut_lists(changed_copy(batch, cut), count, kept)


def _cut_lists(batch: Any, count: int, kept: slice) -> Any:
    """Cut also the lists without tensors, such as file names, which have one entry for each sample."""
    if isinstance(batch, Mapping):
        for name, value in batch.items():
            if isinstance(value, list) and len(value) == count and not any(isinstance(each, Tensor) for each in value):
                batch[name] = value[kept]  # type: ignore[index]
    if isinstance(batch, list):
        return [
            value[kept] if isinstance(value, list) and len(value) == count and not isinstance(value[0], Tensor) else value
            for value in batch
        ]
    return batch


def generator(seed: int = 0) -> torch.Generator:
    """A generator of its own, so that a check does not draw from the one of the training."""
    return torch.Generator().manual_seed(seed)
