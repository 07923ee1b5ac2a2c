"""The merge of the tables of all ranks: every element counts once.

Small tables of few ranks are gathered, in one collective. Others are reduced, in three: the greatest of extremes and requests,
then sums, then squared deviations from the common mean. What a rank sends and computes then does not depend on the number of
ranks. Both ways merge exactly, and every rank gets the same numbers.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from hashlib import sha256
from typing import Final, Literal, NamedTuple

import torch
from torch import Tensor

from lightning_hooks.stats import schema
from lightning_hooks.stats.moments import merge_groups, neutral
from lightning_hooks.stats.pairs import SMALL, SUMS
from lightning_hooks.stats.schema import COUNT, M2, MAX, MEAN, MIN
from lightning_hooks.stats.sections import REQUESTS, Sections

GATHERED: Final = 4_000_000
"""The bytes of all ranks' tables up to which they are gathered: below, one collective is faster than three; about there a rank
computes as long either way (with gloo, `benchmarks/many_ranks.py`)."""

Parts = tuple[Tensor, Tensor, Tensor, Tensor]
Collective = tuple[Literal["max", "sum"], Tensor]
"""A tensor that all ranks reduce, with the operation."""

_BUILT_IN: Final = torch.distributed.is_available()
_SUMMED: Final = [column for column, moment in enumerate(schema.MOMENTS) if moment.merge in ("sum", "mean")]
assert {moment.merge for moment in schema.MOMENTS} == {"sum", "mean", "m2", "min", "max"}


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


class Copies(NamedTuple):
    """The rows of which several ranks, or groups of ranks, hold copies; the first copy that was measured counts.

    Args:
        rows: their indices, int64 [copied rows].
        first: the first of the ranks that together hold the copy of which this rank holds a share, float64 [copied rows]; -1
            where this rank holds a copy alone.
        histogram_rows: the row of each histogram, int64.
        function_rows: the row of each weighted sum.
        pair_rows: the row of each sum over pairs.
        other_rows: the rows of which tensor-parallel ranks hold either shares or copies, int64; which of the two, their numbers
            tell. Empty without tensor parallelism.
        weight: by which the digests of these are multiplied: they add up to 0 over a tensor-parallel group, float64 [1].
        parallel: the size of a tensor-parallel group.
    """

    rows: Tensor
    first: Tensor
    histogram_rows: Tensor
    function_rows: Tensor
    pair_rows: Tensor
    other_rows: Tensor
    weight: Tensor
    parallel: int

    def bids(self, counts: Tensor, first: Tensor, ranks: int) -> Tensor:
        """How early the copy of a rank comes: the greatest bid for a row is that of the copy that counts.

        Args:
            counts: elements of all rows, [..., rows].
            first: as of this object, [..., copied rows].

        Returns:
            [..., copied rows]; 0 where nothing was measured.
        """
        return torch.where(counts[..., self.rows] > 0, ranks - first, 0.0)

    def counting(self, parts: Parts, wins: Tensor) -> Parts:
        """The parts of tables without what does not count.

        Args:
            parts: moments [..., rows, 9], histograms, weighted sums and sums over pairs.
            wins: whether the copy of the rank counts, bool [..., copied rows].
        """
        moments, histograms, sums, pairs = parts
        counts = torch.ones(moments.shape[:-1], dtype=torch.bool, device=moments.device)
        counts[..., self.rows] = wins
        # Not products: a NaN of a rank that does not count would remain.
        moments = torch.where(counts[..., None], moments, neutral(moments.shape[-2], moments.device))
        histograms = torch.where(counts[..., self.histogram_rows, None], histograms, 0.0)
        sums = torch.where(counts[..., self.function_rows, None], sums, 0.0)
        # Products with the previous gradient are the same on all ranks; the micro-batches of each rank are separate parts.
        of_parts = torch.arange(SUMS, device=counts.device) >= SMALL
        pairs = torch.where(counts[..., self.pair_rows, None] | of_parts, pairs, 0.0)
        return moments, histograms, sums, pairs

    def digests(self, moments: Tensor, weight: Tensor) -> Tensor:
        """What adds up to 0 over all ranks where those of each tensor-parallel group hold the same moments, [..., other rows].

        Args:
            moments: of all rows, [..., rows, 9].
            weight: as of this object, [..., 1].
        """
        factors = torch.arange(1, 2 * moments.shape[-1], 2, device=moments.device) * 0x9E3779B97F4A7C15 % 2**63
        # 31 bits as float64 numbers, whose sums are exact in any order.
        return ((_keys(moments[..., self.other_rows, :]) * factors).sum(-1) >> 33) * weight

    def once(self, moments: Tensor, histograms: Tensor, digests: Tensor) -> None:
        """Divide what a tensor-parallel group has counted several times, in place.

        Args:
            digests: added up over all ranks, [other rows].
        """
        if self.parallel == 1:
            return
        times = torch.ones(len(moments), dtype=torch.float64, device=moments.device)
        times[self.other_rows] += (digests == 0.0) * (self.parallel - 1.0)
        for column, moment in enumerate(schema.MOMENTS):
            if moment.merge in ("sum", "m2"):
                moments[:, column] /= times
        histograms /= times[self.histogram_rows, None]


def copies(
    held: Mapping[int, int | None],
    histogram_rows: Sequence[int],
    function_rows: Sequence[int],
    pair_rows: Sequence[int],
    device: torch.device | str = "cpu",
    other_rows: Sequence[int] = (),
    place: tuple[int, int] = (0, 1),
) -> Copies:
    """The copies that this rank holds.

    Args:
        held: row to the first of the ranks that together hold its copy; None where this rank holds the copy alone.
        place: of this rank in its tensor-parallel group, and the size of the group.
    """
    first = torch.tensor([-1 if rank is None else rank for rank in held.values()], dtype=torch.float64, device=device)
    indices = (
        torch.tensor(list(rows), dtype=torch.int64, device=device)
        for rows in (held, histogram_rows, function_rows, pair_rows, other_rows if place[1] > 1 else ())
    )
    rows, histograms, functions, pairs, others = indices
    weight = torch.tensor([1.0 if place[0] < place[1] - 1 else 1.0 - place[1]], dtype=torch.float64, device=device)
    return Copies(rows, first, histograms, functions, pairs, others, weight, place[1])


def merge_ranks(state: Tensor, sections: Sections, owned: Copies) -> Tensor:
    """The state of a table merged over all ranks, all of which must call this with the same sections.

    On CUDA the host does not wait.

    Returns:
        The merged state: equal on all ranks, with the greatest of their requests.
    """
    ranks = world_size()
    owned = owned._replace(first=torch.where(owned.first < 0, rank(), owned.first))
    if ranks * state.nbytes <= GATHERED:
        return merge_gathered(_gather(torch.cat([state, owned.first, owned.weight])), sections, owned)
    steps = merge_reduced(state, sections, owned, ranks)
    operations = {"max": torch.distributed.ReduceOp.MAX, "sum": torch.distributed.ReduceOp.SUM}
    operation, tensor = next(steps)
    while True:
        torch.distributed.all_reduce(tensor, op=operations[operation])
        try:
            operation, tensor = steps.send(tensor)
        except StopIteration as end:
            merged: Tensor = end.value
            return merged


def merge_gathered(tables: Tensor, sections: Sections, owned: Copies) -> Tensor:
    """The merged state from the states of all ranks.

    Args:
        tables: the state of each rank with the `first` and the `weight` of its copies, [ranks, elements].
        sections: of a state.
        owned: the copies of any rank.
    """
    states, first, weights = tables.split([sections.size, len(owned.rows), 1], dim=1)
    moments, histograms, sums, pairs = (
        torch.stack(part) for part in zip(*(sections.split(state) for state in states), strict=True)
    )
    bids = owned.bids(moments[..., COUNT], first, len(tables))
    parts = owned.counting((moments, histograms, sums, pairs), bids == bids.amax(0))
    merged = (merge_groups(parts[0]), *(part.sum(0) for part in parts[1:]))
    owned.once(merged[0], merged[1], owned.digests(moments, weights).sum(0))
    return torch.cat([*(part.flatten() for part in merged), states[:, -REQUESTS:].amax(0)])


def merge_reduced(state: Tensor, sections: Sections, owned: Copies, ranks: int) -> Generator[Collective, Tensor, Tensor]:
    """The merged state by reductions, from that of this rank: yields what ranks are to reduce, and is sent the result."""
    moments, histograms, sums, pairs = sections.split(state)
    rows = len(moments)
    bids = owned.bids(moments[:, COUNT], owned.first, ranks)
    greatest = _numbers((yield "max", _keys(torch.cat([-moments[:, MIN], moments[:, MAX], bids, state[-REQUESTS:]]))))
    lowest, highest, best, requests = greatest.split([rows, rows, len(bids), REQUESTS])
    moments, *others = owned.counting((moments, histograms, sums, pairs), bids == best)

    count, mean = moments[:, COUNT], moments[:, MEAN]
    # The greatest magnitude of all elements as the unit of means: their weighted sums do not overflow.
    unit = torch.maximum(lowest.abs(), highest.abs())
    unit = torch.where((unit > 0) & (unit < torch.inf), unit, 1.0)
    columns = [count * (mean / unit) if column == MEAN else moments[:, column] for column in _SUMMED]
    summed = [*columns, *(part.flatten() for part in others), owned.digests(moments, owned.weight)]
    total = (yield "sum", torch.cat(summed)).split([len(part) for part in summed])

    merged = neutral(rows, state.device)
    for column, added in zip(_SUMMED, total, strict=False):
        merged[:, column] = added
    merged[:, MEAN] *= unit / merged[:, COUNT].clip(1)
    between = torch.where(count == 0, 0.0, count * (mean - merged[:, MEAN]) ** 2)  # not inf or NaN, whatever the mean is
    merged[:, M2] = yield "sum", moments[:, M2] + between
    merged[:, MIN], merged[:, MAX] = -lowest, highest
    *_, histograms, sums, pairs, digests = total
    owned.once(merged, histograms.view(others[0].shape), digests)
    return torch.cat([merged.flatten(), histograms, sums, pairs, requests])


def _keys(numbers: Tensor) -> Tensor:
    """Integers in the order of float64 numbers, with NaN as the greatest: a reduction of numbers may ignore a NaN."""
    bits = torch.where(numbers.isnan(), torch.nan, numbers).view(torch.int64)  # a NaN without a sign
    return bits ^ ((bits >> 63) & torch.iinfo(torch.int64).max)


def _numbers(keys: Tensor) -> Tensor:
    """The numbers of `_keys`."""
    return (keys ^ ((keys >> 63) & torch.iinfo(torch.int64).max)).view(torch.float64)


def _gather(state: Tensor) -> Tensor:
    """The states of all ranks, [ranks, elements]."""
    ranks = world_size()
    out = torch.empty(ranks * state.numel(), dtype=state.dtype, device=state.device)
    gather = getattr(torch.distributed, "all_gather_single", None) or torch.distributed.all_gather_into_tensor  # of torch 2.10
    gather(out, state.contiguous())
    return out.view(ranks, -1)
