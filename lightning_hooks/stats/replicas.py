"""Replicas: rows of which several ranks hold copies. A merge over ranks counts one copy of each, so each element once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lightning_hooks.stats.accumulators import Accumulator
from lightning_hooks.stats.keys import keys_of
from lightning_hooks.stats.sections import Sections


class Replicas(NamedTuple):
    """The rows of which several ranks, or groups of ranks, hold copies. Of each row, the first copy that was measured counts.

    Args:
        rows: the indices of these rows, int64 [replicated rows].
        first: for each row the first rank of the group that shares the copy of this rank, float64 [replicated rows]; -1 if this
            rank holds a whole copy.
        rows_of: for each section of a state the rows that have a slot in the section, int64.
        other_rows: the remaining rows, of which the ranks of a tensor-parallel group hold either shares or equal copies, int64.
            `digests` distinguishes the two cases. Empty without tensor parallelism.
        weight: the factor of the digests of `other_rows`, float64 [1]; the factors of a tensor-parallel group add up to 0.
        parallel: the number of ranks in a tensor-parallel group; 1 without tensor parallelism.
    """

    rows: Tensor
    first: Tensor
    rows_of: tuple[Tensor, ...]
    other_rows: Tensor
    weight: Tensor
    parallel: int

    def of_sections(self, sections: Sections) -> Replicas:
        """The same copies for a layout with only the first of the sections."""
        return self._replace(rows_of=self.rows_of[: len(sections.kept)])

    def bids(self, counts: Tensor, first: Tensor, ranks: int) -> Tensor:
        """The bid of a rank for each replicated row: the lower the first rank of its copy, the higher. The greatest bid wins.

        Args:
            counts: the number of elements of all rows, [..., rows].
            first: the field `first` of the rank or ranks, [..., replicated rows].
            ranks: the number of ranks.

        Returns:
            float64 [..., replicated rows]; 0 where the rank has not measured the row.
        """
        return torch.where(counts[..., self.rows] > 0, ranks - first, 0.0)

    def keep_counted(self, sections: Sections, arrays: Sequence[Tensor], wins: Tensor) -> list[Tensor]:
        """The sections of states in which the numbers of copies that do not count are replaced by neutral ones.

        Args:
            sections: the layout of a state.
            arrays: those of the sections, each [..., rows that keep the accumulator, columns].
            wins: whether the copy of the rank counts, bool [..., replicated rows].
        """
        counts = torch.ones(arrays[0].shape[:-1], dtype=torch.bool, device=wins.device)
        counts[..., self.rows] = wins
        kept: list[Tensor] = []
        for each, rows, array in zip(sections.kept, self.rows_of, arrays, strict=True):
            does_count = counts[..., rows, None]
            if any(column.every_rank for column in each.accumulator.columns):
                does_count = does_count | _mask(each.accumulator, "every_rank", wins.device)
            # Select instead of multiplying by 0: a NaN in a copy that does not count would remain a NaN.
            kept.append(torch.where(does_count, array, each.accumulator.neutral(wins.device)))
        return kept

    def digests(self, moments: Tensor, weight: Tensor) -> Tensor:
        """Weighted digests of the moments of `other_rows`, float64 [..., other rows].

        Their sum over all ranks is 0 if the ranks of each tensor-parallel group hold the same moments: then they hold copies.

        Args:
            moments: the moments of all rows, [..., rows, 9].
            weight: the field `weight` of the rank or ranks, [..., 1].
        """
        factors = torch.arange(1, 2 * moments.shape[-1], 2, device=moments.device) * 0x9E3779B97F4A7C15 % 2**63
        # Keep the upper 30 bits and the sign, so that sums of digests are exact in float64, in any order of the ranks.
        return ((keys_of(moments[..., self.other_rows, :]) * factors).sum(-1) >> 33) * weight

    def divide_repeated(self, sections: Sections, arrays: Sequence[Tensor], digests: Tensor) -> None:
        """Divide the sums of rows that every rank of a tensor-parallel group has counted by the size of the group, in place.

        Args:
            sections: the layout of a state.
            arrays: those of the merged sections; written.
            digests: the digests, summed over all ranks, [other rows].
        """
        if self.parallel == 1:
            return
        times = torch.ones(len(arrays[0]), dtype=torch.float64, device=digests.device)
        times[self.other_rows] += (digests == 0.0) * (self.parallel - 1.0)
        for each, rows, array in zip(sections.kept, self.rows_of, arrays, strict=True):
            array /= torch.where(_mask(each.accumulator, "sum", digests.device), times[rows, None], 1.0)


def _mask(accumulator: Accumulator, what: str, device: torch.device) -> Tensor:
    """Flags of columns, bool [columns]: with 'every_rank' the columns that have this flag, with 'sum' all other sums."""
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
    tensor_parallel: tuple[int, int] = (0, 1),
) -> Replicas:
    """The copies that this rank holds.

    Args:
        held: for each replicated row the first rank of the group that shares the copy of this rank; None if this rank holds a
            whole copy.
        sections: the layout of the state.
        device: the device of the state.
        other_rows: as of `Replicas`; ignored without tensor parallelism.
        tensor_parallel: the index of this rank in its tensor-parallel group, and the size of the group.

    Example:
        >>> replicas({1: None}, Sections(2)).rows.tolist()
        [1]
    """
    index, size = tensor_parallel

    def indices(rows: Iterable[int]) -> Tensor:
        return torch.tensor(list(rows), dtype=torch.int64, device=device)

    first = torch.tensor([-1 if rank is None else rank for rank in held.values()], dtype=torch.float64, device=device)
    weight = torch.tensor([1.0 if index < size - 1 else 1.0 - size], dtype=torch.float64, device=device)
    rows_of = tuple(indices(each.rows) for each in sections.kept)
    return Replicas(indices(held), first, rows_of, indices(other_rows if size > 1 else ()), weight, size)
