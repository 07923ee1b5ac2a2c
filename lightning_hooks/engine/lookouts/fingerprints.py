"""Fingerprints of batches: numbers that are equal if the batches are, read without waiting for a device."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import torch
from torch import Tensor

from lightning_hooks.stats import kernels
from lightning_hooks.stats.host_copy import HostCopy, begin_copy
from lightning_hooks.tensor_kinds import is_dense, is_transformed

_MOST_TENSORS: Final = 4
"""The number of tensors of a batch that are looked at."""
_LEAST: Final = 256
"""The elements of a tensor that are looked at, at least, if it has as many."""
_MOST: Final = 1024
"""The elements that are looked at of a tensor whose memory has gaps."""
_STRIDES: Final = (
    *(1, 2, 5, 11, 23, 47, 97, 197, 397, 797, 1597, 3203, 6421, 12853, 25717, 51437, 102877, 205759, 411527, 823117),
    *(1646237, 3292489, 6584983),
)
"""Distances between two elements that are looked at: primes, so that these do not all come from the same column."""


class Fingerprint(NamedTuple):
    """A fingerprint, perhaps still on its way from the device.

    Args:
        kinds: the shape and the number format of each tensor.
        copies: some elements of each.
    """

    kinds: tuple[tuple[torch.Size, torch.dtype], ...]
    copies: tuple[HostCopy, ...]

    @property
    def has_arrived(self) -> bool:
        """Whether `value` returns without waiting."""
        return have_arrived(self.copies)

    def value(self) -> int:
        """The fingerprint as a number, which is equal for equal batches of one process."""
        return hash((self.kinds, *(each.wait().tobytes() for each in self.copies)))


def fingerprint_of(tensors: Iterable[Tensor]) -> Fingerprint | None:
    """The fingerprint of the first tensors of a batch; None if none of them can be read without waiting.

    Example:
        >>> one, same, other = (fingerprint_of([torch.arange(9) + each]) for each in (0, 0, 1))
        >>> one.value() == same.value(), one.value() == other.value()
        (True, False)
    """
    known = [tensor for tensor in tensors if can_copy(tensor)][:_MOST_TENSORS]
    if not known:
        return None
    return Fingerprint(
        tuple((tensor.shape, tensor.dtype) for tensor in known), tuple(begin_copy(_bytes_of(tensor)) for tensor in known)
    )


def can_copy(tensor: Tensor) -> bool:
    """Whether elements of a tensor can be copied to the host without waiting for a device."""
    if not is_dense(tensor) or tensor.device.type not in ("cpu", "cuda") or is_transformed(tensor):
        return False
    return not kernels.is_capturing(tensor.device)


def have_arrived(copies: Sequence[HostCopy]) -> bool:
    """Whether copies are complete. While a CUDA graph is captured, CUDA may not be asked, and the answer is no."""
    if all(each.ready for each in copies):
        return True
    return not torch.cuda.is_current_stream_capturing() and all(each.has_arrived for each in copies)


def few_of(tensor: Tensor) -> Tensor:
    """Some elements of a tensor, spread over all of it; all elements of a small one.

    Example:
        >>> few_of(torch.zeros(1, 300)).shape, few_of(torch.zeros(4, 64, 64)).shape
        (torch.Size([300]), torch.Size([349]))
    """
    tensor = tensor.detach()
    if not tensor.is_contiguous():
        # Images may be stored with their channels last: look at the dimensions in the order of the memory.
        tensor = tensor.permute(sorted(range(tensor.dim()), key=tensor.stride, reverse=True))
    if tensor.is_contiguous():
        position = bisect_right(_STRIDES, max(1, tensor.numel() // _LEAST)) - 1
        few = tensor.view(-1)[:: _STRIDES[position]]
    else:
        few = _thinned(tensor).reshape(-1)
    return torch.view_as_real(few.resolve_conj()) if few.is_complex() else few


def _bytes_of(tensor: Tensor) -> Tensor:
    """Some elements of a tensor as bytes."""
    return few_of(tensor).contiguous().view(torch.uint8)


def _thinned(tensor: Tensor) -> Tensor:
    """A view with few elements, of a tensor whose memory has gaps or another order than its dimensions."""
    while tensor.numel() > _MOST:
        longest = max(range(tensor.dim()), key=lambda dim: tensor.shape[dim])
        tensor = tensor[(slice(None),) * longest + (slice(None, None, 2),)]
    return tensor
