"""The processes of a run: how many there are, and what they agree on."""

from __future__ import annotations

from hashlib import sha256
from typing import Final

import torch

_BUILT_IN: Final = torch.distributed.is_available()


def world_size(alone: bool = False) -> int:
    """How many ranks there are.

    Args:
        alone: whether this process has nothing to do with the others of a process group, which an earlier run may have left.
    """
    return torch.distributed.get_world_size() if not alone and _BUILT_IN and torch.distributed.is_initialized() else 1


def rank() -> int:
    return torch.distributed.get_rank() if world_size() > 1 else 0


def of_first_rank(number: int) -> int:
    """A number of the first rank, on all ranks. Collective."""
    held = [number]
    if world_size() > 1:
        torch.distributed.broadcast_object_list(held)
    return held[0]


def have_the_same(what: str, device: torch.device | str) -> bool:
    """Whether all ranks, all of which must call this, give the same text; the device is that of what they exchange."""
    digest = int.from_bytes(sha256(what.encode()).digest()[:7])
    both = torch.tensor([digest, -digest], dtype=torch.int64, device=device)
    torch.distributed.all_reduce(both, torch.distributed.ReduceOp.MAX)
    greatest, negated_least = both.tolist()
    return bool(greatest == -negated_least)
