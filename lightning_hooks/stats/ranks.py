"""The merge of the tables of all ranks, in one collective: every element counts once."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from lightning_hooks.stats.moments import merge_groups, neutral
from lightning_hooks.stats.pairs import SMALL, SUMS
from lightning_hooks.stats.schema import COUNT

Parts = tuple[Tensor, Tensor, Tensor, Tensor]
_BUILT_IN: Final = torch.distributed.is_available()


def world_size() -> int:
    return torch.distributed.get_world_size() if _BUILT_IN and torch.distributed.is_initialized() else 1


def gather(state: Tensor, group: Any = None) -> list[Tensor]:
    """The states of all ranks.

    Args:
        state: of this rank, flat, with the same length on all ranks.
        group: of ranks; all of them by default.
    """
    world = torch.distributed.get_world_size(group)
    out = torch.empty(world * state.numel(), dtype=state.dtype, device=state.device)
    torch.distributed.all_gather_single(out, state.contiguous(), group=group)
    return list(out.view(world, -1))


def merge_ranks(parts: Parts, replicated: Tensor, histogram_rows: Tensor, function_rows: Tensor, pair_rows: Tensor) -> Parts:
    """The parts of a table, merged.

    Args:
        parts: moments [ranks, rows, 9], histograms, weighted sums and sums over pairs, each with the ranks in front.
        replicated: the rows that are the same on every rank, bool [rows].
        histogram_rows: the row of each histogram, int64, on the device of the parts as all of these.
        function_rows: the row of each weighted sum.
        pair_rows: the row of each sum over pairs.
    """
    moments, histograms, sums, pairs = parts
    counts = counted_once(moments[..., COUNT], replicated)
    moments = torch.where(counts[..., None], moments, neutral(moments.shape[1], moments.device))
    histograms = histograms * counts[:, histogram_rows, None]
    # Not a product: a NaN of a rank that does not count would remain.
    sums = torch.where(counts[:, function_rows, None], sums, 0.0)
    # Products with the previous gradient are the same on all ranks; the micro-batches of each rank are separate parts.
    of_parts = torch.arange(SUMS, device=counts.device) >= SMALL
    pairs = torch.where(counts[:, pair_rows, None] | of_parts, pairs, 0.0)
    return merge_groups(moments), histograms.sum(0), sums.sum(0), pairs.sum(0)


def counted_once(count: Tensor, replicated: Tensor) -> Tensor:
    """Which rows of which ranks count, bool [ranks, rows]: of a replicated tensor the first rank that has it, of others all.

    Args:
        count: elements [ranks, rows].
        replicated: bool [rows].

    Example:
        >>> counted_once(torch.tensor([[0.0, 2.0], [3.0, 2.0]]), torch.tensor([True, False])).tolist()
        [[False, True], [True, True]]
    """
    ranks = torch.arange(len(count), device=count.device)[:, None]
    first = (count > 0).to(torch.uint8).argmax(0)
    return (ranks == first) | ~replicated.to(count.device)
