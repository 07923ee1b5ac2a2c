"""Checksums of tensors, by which the ranks of a run find out whether their replicas of a model are equal."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def checksums(tensors: Sequence[Tensor]) -> Tensor:
    """The sums of the bit patterns of tensors, int64 [tensors], on the device of the first one.

    Args:
        tensors: dense, each of any shape and dtype; at least one.

    Example:
        >>> first, second = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0000002])
        >>> checksums([first]).equal(checksums([first.clone()])), checksums([first]).equal(checksums([second]))
        (True, False)
    """
    with torch.no_grad():
        parts = [torch.view_as_real(each.resolve_conj()) if each.is_complex() else each for each in tensors]
        sums = [each.detach().view(_INTEGERS[each.element_size()]).sum(dtype=torch.int64) for each in parts]
        return torch.stack([each.to(sums[0].device) for each in sums])


def differ(sums: Tensor) -> list[int]:
    """The positions at which the checksums of the ranks differ. A collective, which waits for the device.

    Args:
        sums: of the tensors of this rank, int64 [tensors].
    """
    both = torch.cat([sums, -sums])
    torch.distributed.all_reduce(both, torch.distributed.ReduceOp.MAX)
    greatest, negated_least = both.chunk(2)
    return torch.nonzero(greatest != -negated_least).flatten().tolist()
