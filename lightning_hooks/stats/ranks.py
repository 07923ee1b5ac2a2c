"""The merge of the tables of all ranks, in which every element counts once.

Small tables of few ranks are gathered with one collective. Larger tables are reduced with three collectives: maxima of extremes
and of requests, then sums, then squared deviations from the common mean. The data that a rank sends and the time that it
computes then do not depend on the number of ranks. Both ways merge exactly, and every rank gets the same numbers.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final, Literal

import torch
from torch import Tensor

from lightning_hooks.stats import schema
from lightning_hooks.stats.accumulators import MOMENTS, Accumulator
from lightning_hooks.stats.columns import STACKED
from lightning_hooks.stats.keys import keys_of, numbers_of
from lightning_hooks.stats.processes import rank, world_size
from lightning_hooks.stats.replicas import Replicas
from lightning_hooks.stats.schema import COUNT, M2, MAX, MEAN, MIN
from lightning_hooks.stats.sections import Sections

GATHERED: Final = 4_000_000
"""Tables are gathered if those of all ranks together have at most so many bytes. One collective is faster than three below this
size, and about as fast at this size (measured with gloo by `benchmarks/many_ranks.py`)."""

Collective = tuple[Literal["max", "sum"], Tensor]
"""A reduction over ranks: the operation, and the tensor of this rank."""

_SUMMED: Final = [column for column, moment in enumerate(schema.MOMENTS) if moment.merge in ("sum", "mean")]
assert {moment.merge for moment in schema.MOMENTS} == {"sum", "mean", "m2", "min", "max"}


def merge_ranks(state: Tensor, sections: Sections, replicas: Replicas) -> Tensor:
    """The state of a table merged over all ranks. On CUDA the host does not wait for the device.

    All ranks must call this function with the same sections.

    Args:
        state: the state of this rank, float64 [sections.size].
        sections: the layout of the state.
        replicas: the copies that this rank holds.

    Returns:
        float64 [sections.size], equal on all ranks, with the greatest requests of any rank.
    """
    ranks = world_size()
    replicas = replicas._replace(first=torch.where(replicas.first < 0, rank(), replicas.first))
    if ranks * state.nbytes <= GATHERED:
        return merge_gathered(_gather(torch.cat([state, replicas.first, replicas.weight])), sections, replicas)
    steps = merge_reduced(state, sections, replicas, ranks)
    operations = {"max": torch.distributed.ReduceOp.MAX, "sum": torch.distributed.ReduceOp.SUM}
    operation, tensor = next(steps)
    while True:
        torch.distributed.all_reduce(tensor, op=operations[operation])
        try:
            operation, tensor = steps.send(tensor)
        except StopIteration as end:
            merged: Tensor = end.value
            return merged


def merge_gathered(tables: Tensor, sections: Sections, replicas: Replicas) -> Tensor:
    """The merged state from the states of all ranks.

    Args:
        tables: for each rank its state, followed by the fields `first` and `weight` of its copies, [ranks, elements].
        sections: the layout of a state.
        replicas: the copies of any rank: all ranks have copies of the same rows.
    """
    states, first, weights = tables.split([sections.size, len(replicas.rows), 1], dim=1)
    arrays = [torch.stack(array) for array in zip(*(sections.split(state) for state in states), strict=True)]
    bids = replicas.bids(arrays[0][..., COUNT], first, len(tables))
    counting = replicas.keep_counted(sections, arrays, bids == bids.amax(0))
    merged = [each.accumulator.merge(array, STACKED) for each, array in zip(sections.kept, counting, strict=True)]
    replicas.divide_repeated(sections, merged, replicas.digests(arrays[0], weights).sum(0))
    return sections.joined(merged, states[:, sections.requests].amax(0))


def merge_reduced(state: Tensor, sections: Sections, replicas: Replicas, ranks: int) -> Generator[Collective, Tensor, Tensor]:
    """The merged state, from the state of this rank. The generator yields each reduction, and the caller sends its result."""
    arrays = sections.split(state)
    bids = replicas.bids(arrays[0][:, COUNT], replicas.first, ranks)
    # If several ranks hold copies of a row, all copies have the same minimum and maximum. So one reduction finds the extremes
    # together with the greatest bid, which decides which copy counts in the sums.
    extremes = [_Extremes(each.accumulator, array) for each, array in zip(sections.kept, arrays, strict=True)]
    asked = [*(each.asked for each in extremes), bids, state[sections.requests]]
    greatest = numbers_of((yield "max", keys_of(torch.cat(asked)))).split([len(each) for each in asked])
    merged = [each.merged(reduced) for each, reduced in zip(extremes, greatest, strict=False)]
    best, requests = greatest[-2:]
    counting = replicas.keep_counted(sections, arrays, bids == best)

    means = _Means(counting[0], merged[0])
    columns = [
        means.summed if each.accumulator is MOMENTS else array[:, _of(each.accumulator, "sum")].flatten()
        for each, array in zip(sections.kept, counting, strict=True)
    ]
    summed = [*columns, replicas.digests(arrays[0], replicas.weight)]
    total = (yield "sum", torch.cat(summed)).split([len(array) for array in summed])
    for each, array, added in zip(sections.kept[1:], merged[1:], total[1:], strict=False):
        chosen = _of(each.accumulator, "sum")
        array[:, chosen] = added.view(len(array), len(chosen))
    means.write_means(total[0])
    means.write_deviations((yield "sum", means.deviations()))
    replicas.divide_repeated(sections, merged, total[-1])
    return sections.joined(merged, requests)


def _of(accumulator: Accumulator, *rules: str) -> list[int]:
    """The columns of an accumulator that are merged by one of these rules."""
    return [position for position, column in enumerate(accumulator.columns) if column.merge in rules]


class _Extremes:
    """The minima and maxima of a section, as one reduction of maxima: minima are negated."""

    def __init__(self, accumulator: Accumulator, array: Tensor) -> None:
        self._accumulator, self._rows = accumulator, len(array)
        self._least, self._greatest = _of(accumulator, "min"), _of(accumulator, "max")
        self.asked = torch.cat([-array[:, self._least].flatten(), array[:, self._greatest].flatten()])

    def merged(self, reduced: Tensor) -> Tensor:
        """The section with the extremes of all ranks and neutral sums, from the reduced `asked`."""
        merged = self._accumulator.neutral(reduced.device).repeat(self._rows, 1)
        least, greatest = reduced.split([self._rows * len(self._least), self._rows * len(self._greatest)])
        merged[:, self._least] = -least.view(self._rows, len(self._least))
        merged[:, self._greatest] = greatest.view(self._rows, len(self._greatest))
        return merged


class _Means:
    """The sums, means and squared deviations of the moments as two reductions of sums.

    Args:
        moments: the moments of this rank, neutral for copies that do not count, [rows, 9].
        merged: moments with the extremes of all ranks, [rows, 9]; the other columns are written.
    """

    def __init__(self, moments: Tensor, merged: Tensor) -> None:
        self._moments, self._merged = moments, merged
        lowest, highest = merged[:, MIN], merged[:, MAX]
        # Divide means by the greatest magnitude of all elements, so that their weighted sums do not overflow.
        unit = torch.maximum(lowest.abs(), highest.abs())
        self._unit = torch.where((unit > 0) & (unit < torch.inf), unit, 1.0)

    @property
    def summed(self) -> Tensor:
        """The numbers of the first reduction: sums, and means weighted by counts."""
        moments, weighted = self._moments, self._moments[:, COUNT] * (self._moments[:, MEAN] / self._unit)
        return torch.cat([weighted if column == MEAN else moments[:, column] for column in _SUMMED])

    def write_means(self, total: Tensor) -> None:
        """Write the sums and means of all ranks, from the result of the first reduction."""
        for column, added in zip(_SUMMED, total.view(len(_SUMMED), -1), strict=True):
            self._merged[:, column] = added
        self._merged[:, MEAN] *= self._unit / self._merged[:, COUNT].clip(1)

    def deviations(self) -> Tensor:
        """The numbers of the second reduction: squared deviations from the common mean."""
        count, mean = self._moments[:, COUNT], self._moments[:, MEAN]
        # Without elements the mean is arbitrary, so its product with 0 elements may be NaN.
        between = torch.where(count == 0, 0.0, count * (mean - self._merged[:, MEAN]) ** 2)
        return self._moments[:, M2] + between

    def write_deviations(self, total: Tensor) -> None:
        """Write the squared deviations of all ranks, from the result of the second reduction."""
        self._merged[:, M2] = total


def _gather(state: Tensor) -> Tensor:
    """The states of all ranks, [ranks, elements]."""
    ranks = world_size()
    out = torch.empty(ranks * state.numel(), dtype=state.dtype, device=state.device)
    # torch 2.10 adds `all_gather_single`; older versions have only `all_gather_into_tensor`.
    gather = getattr(torch.distributed, "all_gather_single", None) or torch.distributed.all_gather_into_tensor
    gather(out, state.contiguous())
    return out.view(ranks, -1)
