"""The number of processes of a run, and collectives by which they compare a value."""

from __future__ import annotations

from hashlib import sha256
from typing import Final, TypeVar

import torch

T = TypeVar("T")

_BUILT_IN: Final = torch.distributed.is_available()


def world_size(alone: bool = False) -> int:
    """The number of ranks; 1 if torch.distributed is not initialised.

    Args:
        alone: whether to return 1 even if there is a process group. An earlier run may have left one that this run does not
            use.
    """
    return torch.distributed.get_world_size() if not alone and _BUILT_IN and torch.distributed.is_initialized() else 1


def rank() -> int:
    return torch.distributed.get_rank() if world_size() > 1 else 0


def of_first_rank(value: T) -> T:
    """The value that the first rank passes, on all ranks, which must all call this function."""
    values = [value]
    if world_size() > 1:
        torch.distributed.broadcast_object_list(values)
    return values[0]


def have_the_same(what: str, device: torch.device | str) -> bool:
    """Whether all ranks pass the same text. All ranks must call this function.

    Args:
        what: the text.
        device: a device of the backend, on which the ranks exchange digests of the text.
    """
    digest = int.from_bytes(sha256(what.encode()).digest()[:7])
    both = torch.tensor([digest, -digest], dtype=torch.int64, device=device)
    torch.distributed.all_reduce(both, torch.distributed.ReduceOp.MAX)
    greatest, negated_least = both.tolist()
    return bool(greatest == -negated_least)
