"""Replicas: rows that several ranks hold as copies, so that a merge counts each element once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lightning_hooks.stats.accumulators import Accumulator
from lightning_hooks.stats.keys import keys_of
from lightning_hooks.stats.sections import Sections


class Replicas(NamedTuple):
    """The rows of which several ranks, or groups of ranks, hold copies; the first copy that was measured counts.

    Args:
        rows: their indices, int64 [replicated rows].
        first: the first of the ranks that together hold the copy of which this rank holds a share, float64 [replicated
            rows]; -1 where this rank holds a copy alone.
        rows_of: for each section of a state the rows that keep it, int64.
        other_rows: the rows of which tensor-parallel ranks hold either shares or copies, int64; which of the two, their numbers
            tell. Empty without tensor parallelism.
        weight: by which the digests of these are multiplied: they add up to 0 over a tensor-parallel group, float64 [1].
        parallel: the size of a tensor-parallel group.
    """

    rows: Tensor
    first: Tensor
    rows_of: tuple[Tensor, ...]
    other_rows: Tensor
    weight: Tensor
    parallel: int

    def bids(self, counts: Tensor, first: Tensor, ranks: int) -> Tensor:
        """How early the copy of a rank comes: the greatest bid for a row is that of the copy that counts.

        Args:
            counts: elements of all rows, [..., rows].
            first: as of this object, [..., replicated rows].

        Returns:
            [..., replicated rows]; 0 where nothing was measured.
        """
        return torch.where(counts[..., self.rows] > 0, ranks - first, 0.0)

    def counting(self, sections: Sections, parts: Sequence[Tensor], wins: Tensor) -> list[Tensor]:
        """The sections of states without what does not count.

        Args:
            sections: of a state.
            parts: the sections [..., rows that keep the accumulator, columns].
            wins: whether the copy of the rank counts, bool [..., replicated rows].
        """
        counts = torch.ones(parts[0].shape[:-1], dtype=torch.bool, device=wins.device)
        counts[..., self.rows] = wins
        kept: list[Tensor] = []
        for each, rows, part in zip(sections.kept, self.rows_of, parts, strict=True):
            does_count = counts[..., rows, None]
            if any(column.every_rank for column in each.accumulator.columns):
                does_count = does_count | _mask(each.accumulator, "every_rank", wins.device)
            # Not products: a NaN of a rank that does not count would remain.
            kept.append(torch.where(does_count, part, each.accumulator.neutral(wins.device)))
        return kept

    def digests(self, moments: Tensor, weight: Tensor) -> Tensor:
        """What adds up to 0 over all ranks where those of each tensor-parallel group hold the same moments, [..., other rows].

        Args:
            moments: of all rows, [..., rows, 9].
            weight: as of this object, [..., 1].
        """
        factors = torch.arange(1, 2 * moments.shape[-1], 2, device=moments.device) * 0x9E3779B97F4A7C15 % 2**63
        # 31 bits as float64 numbers, whose sums are exact in any order.
        return ((keys_of(moments[..., self.other_rows, :]) * factors).sum(-1) >> 33) * weight

    def once(self, sections: Sections, parts: Sequence[Tensor], digests: Tensor) -> None:
        """Divide what a tensor-parallel group has counted several times, in place.

        Args:
            sections: of a state.
            parts: the merged sections.
            digests: added up over all ranks, [other rows].
        """
        if self.parallel == 1:
            return
        times = torch.ones(len(parts[0]), dtype=torch.float64, device=digests.device)
        times[self.other_rows] += (digests == 0.0) * (self.parallel - 1.0)
        for each, rows, part in zip(sections.kept, self.rows_of, parts, strict=True):
            part /= torch.where(_mask(each.accumulator, "sum", digests.device), times[rows, None], 1.0)


def _mask(accumulator: Accumulator, what: str, device: torch.device) -> Tensor:
    """Columns of an accumulator, bool [columns]: the sums over ranks that hold parts, or those of `every_rank`."""
    flags = [
        column.every_rank if what == "every_rank" else column.merge in ("sum", "m2") and not column.every_rank
        for column in accumulator.columns
    ]
    return torch.tensor(flags, dtype=torch.bool, device="cpu").to(device, non_blocking=True)


def replicas(
    held: Mapping[int, int | None],
    sections: Sections,
    device: torch.device | str = "cpu",
    other_rows: Sequence[int] = (),
    place: tuple[int, int] = (0, 1),
) -> Replicas:
    """The copies that this rank holds.

    Args:
        held: row to the first of the ranks that together hold its copy; None where this rank holds the copy alone.
        sections: of the state.
        device: of the state.
        other_rows: as of `Replicas`.
        place: of this rank in its tensor-parallel group, and the size of the group.
    """

    def indices(rows: Iterable[int]) -> Tensor:
        return torch.tensor(list(rows), dtype=torch.int64, device=device)

    first = torch.tensor([-1 if rank is None else rank for rank in held.values()], dtype=torch.float64, device=device)
    weight = torch.tensor([1.0 if place[0] < place[1] - 1 else 1.0 - place[1]], dtype=torch.float64, device=device)
    rows_of = tuple(indices(each.rows) for each in sections.kept)
    return Replicas(indices(held), first, rows_of, indices(other_rows if place[1] > 1 else ()), weight, place[1])
