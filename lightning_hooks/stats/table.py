"""The table of a monitor: one row of moments per tap, filled by hooks, merged over ranks in one collective."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_hooks.stats import device_rows, kernels
from lightning_hooks.stats.custom import UserStatistic
from lightning_hooks.stats.device_rows import Detour
from lightning_hooks.stats.host_copy import at_once, begin_copy
from lightning_hooks.stats.measurement import Measurement
from lightning_hooks.stats.merged import FACTOR, STOP, VOTES, Merging
from lightning_hooks.stats.moments import MOMENTS, merge
from lightning_hooks.stats.ranks import gather, merge_ranks, world_size
from lightning_hooks.stats.sections import Sections
from lightning_hooks.stats.user_rows import UserRows


class Places(NamedTuple):
    """Where in the state of a table rows lie that are written together again and again.

    Args:
        rows: which.
        moments: the first number of each.
        histograms: the first number of the histogram of each, `NOWHERE` for none; None where no row has one.
    """

    rows: Sequence[int]
    moments: NDArray[np.int64]
    histograms: NDArray[np.int64] | None


class Table:
    """Raw moments of every tap of a step, and log2 histograms of the rows that ask for them.

    The `state` is one flat tensor, so that the ranks exchange it in one collective; its last two elements are the votes of this
    rank: how much longer it wants intervals to be, and whether to stop. `sections` says what lies where in it.

    Args:
        rows: number of taps.
        histogram_rows: the rows that also keep a histogram.
        users: the rows that also keep a user's statistic, with it.
        replicated: the rows that are the same on every rank, as parameters and their averaged gradients are.
        pair_rows: the rows that also keep sums over pairs of gradients.
        device: where the moments live.
        magnitudes: whether the sums of magnitudes and the underflows of rows are asked for; if not, the compiled kernel writes
            NaN in place of the sums.

    Example:
        >>> table = Table(2)
        >>> table.add(0, Measurement(torch.tensor([1.0, 3.0])))
        >>> table.add(0, Measurement(torch.tensor([5.0])))
        >>> table.moments[:, 0].tolist(), table.moments[0, 1].item()
        ([3.0, 0.0], 3.0)
    """

    def __init__(
        self,
        rows: int,
        histogram_rows: tuple[int, ...] = (),
        users: Sequence[tuple[int, UserStatistic]] = (),
        replicated: Sequence[int] = (),
        pair_rows: tuple[int, ...] = (),
        device: torch.device | str = "cpu",
        magnitudes: bool = True,
    ) -> None:
        self.rows = rows
        self.magnitudes = magnitudes
        self._slot_of = {row: slot for slot, row in enumerate(histogram_rows)}
        self.users = UserRows(users, replicated, device)
        self._has_users = bool(users)
        self._more_than_moments = {*self._slot_of, *self.users.rows}
        self._replicated = torch.zeros(rows, dtype=torch.bool)
        self._replicated[list(replicated)] = True
        self._pair_slots = {row: slot for slot, row in enumerate(pair_rows)}
        functions = [row for row, _, _ in self.users.functions]
        self.sections = Sections(rows, len(histogram_rows), len(functions), len(pair_rows))
        self.state = self.sections.blank().to(device)
        indices = [torch.tensor(kept, dtype=torch.int64, device=device) for kept in (histogram_rows, functions, pair_rows)]
        self._kept_by = (self._replicated.to(device), *indices)
        self._touched: set[int] = set()

    @property
    def moments(self) -> Tensor:
        """Raw moments, float64 [rows, 9]: a view of the state."""
        return self.sections.moments_of(self.state)

    @property
    def histogram_slots(self) -> Mapping[int, int]:
        """Which of the histograms is that of a row."""
        return self._slot_of

    @property
    def pair_rows(self) -> tuple[int, ...]:
        """The rows that keep sums over pairs, in the order of these."""
        return tuple(self._pair_slots)

    def add(self, row: int, look: Measurement, seen: Tensor | None = None) -> None:
        """Merge a measurement into a row: one of several calls or micro-batches of the step.

        Args:
            row: which.
            look: what was measured.
            seen: what a user's statistics are given; the tensor of the measurement by default.
        """
        # Writers write too, so only the row itself knows whether anything is in it; a neutral one merges as nothing.
        self._write(row, look, merging=True, seen=seen)

    def writer(self, row: int, detour: Detour) -> Callable[[Tensor], None]:
        """A function that merges a tensor into a row as `add` does, but straight from its memory.

        Args:
            row: which.
            detour: asked at every call whether tensors may be written so; called with the row and a tensor in place of that:
                where they may not, where the kernel does not measure it, and where anything goes wrong. All that is done, where
                every tensor of the row takes a measurement: for a user's statistic, or on a device without a kernel of its own.

        Example:
            >>> class Detour:
            ...     direct = True
            ...     def __call__(self, row, tensor):
            ...         table.add(row, Measurement(tensor))
            >>> table = Table(1)
            >>> write = table.writer(0, Detour())
            >>> write(torch.tensor([1.0, 3.0]))
            >>> table.moments[0, 1].item()
            2.0
        """
        device = kernels.on_device(self.state)
        if device is not None and row not in self._more_than_moments:
            return device_rows.writer(device, self, row, detour)
        if not self.state.is_cpu or row in self.users:
            return partial(detour, row)
        write: Callable[[Tensor], None] = kernels.host.writer(self, row, self._histogram_of(row), detour)
        return write

    def put(self, row: int, look: Measurement) -> None:
        """Set a row to a measurement: the last one of the step counts."""
        self.users.reset(row)
        self._write(row, look, merging=False)

    def put_all(self, rows: Sequence[int], looks: Sequence[Measurement]) -> list[int]:
        """Set several rows in one call.

        Args:
            rows: which.
            looks: their measurements, in the same order.

        Returns:
            Which of them, counted from 0, are left for `put`: they keep more than moments, or are not measured by the kernel;
            on a device, they keep a user's statistic, or are not measurable.
        """
        if not self.state.is_cpu:
            self._touched.update(rows)
            parts = self.sections.split(self.state)[:2]
            return device_rows.put(*parts, self._slot_of, self.users.rows, rows, looks)
        put: list[int] = []
        moments: list[bytes] = []
        left: list[int] = []
        for position, (row, look) in enumerate(zip(rows, looks, strict=True)):
            packed = None if row in self._more_than_moments else look.packed()
            if packed is None:
                left.append(position)
            else:
                put.append(row)
                moments.append(packed)
        self.sections.moments_of(self.state.numpy())[put] = np.frombuffer(b"".join(moments)).reshape(-1, MOMENTS)
        return left

    def places(self, rows: Sequence[int]) -> Places:
        """Where rows lie, for those who write them again and again.

        Args:
            rows: which.
        """
        histograms = None
        if not self._slot_of.keys().isdisjoint(rows):
            found = (self._histogram_of(row) for row in rows)
            histograms = np.array([kernels.NOWHERE if place is None else place for place in found], dtype=np.int64)
        return Places(rows, np.array(rows, dtype=np.int64) * MOMENTS, histograms)

    def measure_all(
        self, rows: Sequence[int] | Places, tensors: Sequence[Tensor], taken_away: Sequence[Tensor] | None = None
    ) -> list[int]:
        """Set rows to what tensors hold that nobody else looks at, or to what they are more than others.

        Args:
            rows: which.
            tensors: in the same order.
            taken_away: from each of them, in float32 at least and without making the differences.

        Returns:
            Which of them, counted from 0, are left for `put`, as `put_all` has it.

        Example:
            >>> table = Table(1)
            >>> left = table.measure_all([0], [torch.tensor([3.0, 5.0])], [torch.tensor([1.0, 2.0])])
            >>> left == [0] or table.moments[0, 1].item() == 2.5
            True
        """
        places = rows if isinstance(rows, Places) else self.places(rows)
        device = kernels.on_device(self.state)
        if device is not None:
            lists = (tensors,) if taken_away is None else (tensors, taken_away)
            return device_rows.measure_into(device, self.state, places.rows, lists, self._more_than_moments)
        if not self.state.is_cpu or self._has_users:
            return list(range(len(places.rows)))
        left: list[int] = kernels.host.measure_many_into(
            self.state, places.moments, tensors, taken_away, places.histograms, self.magnitudes
        )
        return left

    def _histogram_of(self, row: int) -> int | None:
        """Where in the state the histogram of a row begins, if it keeps one."""
        return self.sections.histogram(self._slot_of[row]) if row in self._slot_of else None

    def _write(self, row: int, look: Measurement, *, merging: bool, seen: Tensor | None = None) -> None:
        slot = self._slot_of.get(row)
        if slot is not None:
            look.packed(with_histogram=True)  # both in one pass
        moments, histograms, sums, _ = self.sections.split(self.state)
        new = look.moments.to(self.state.device, non_blocking=True)
        moments[row] = merge(moments[row], new) if merging else new
        if slot is not None:
            counts = look.histogram.to(self.state.device, non_blocking=True)
            histograms[slot] = histograms[slot] + counts if merging else counts
        self._touched.add(row)
        if row in self.users:
            self.users.fill(row, sums, look.tensor if seen is None else seen, merging=merging)

    def pair_sums(self, row: int) -> Tensor:
        """The sums over pairs of gradients that a row keeps, float64 [5]: a view of the state."""
        return self.sections.split(self.state)[3][self._pair_slots[row]]

    def clear(self) -> None:
        """Make every row neutral again."""
        # By NumPy in a tenth of the time that torch takes for it.
        self.sections.clear(self.state.numpy() if self.state.is_cpu else self.state)
        self._touched.clear()
        if self._has_users:
            self.users.reset()

    def merging(self, *, stop: bool = False, factor: int = 1) -> Merging:
        """The whole state merged over all ranks: one collective where there are several, none otherwise.

        From a CUDA device it comes without waiting for it, unless a row keeps a metric of a user's: those are read at once, as
        the next step begins with empty ones.

        Args:
            stop: the vote of this rank; all ranks learn whether any has voted to stop.
            factor: by which this rank wants intervals to be longer; all ranks learn the greatest.
        """
        to_host = at_once if self.users.have_metrics else begin_copy
        if world_size() == 1:
            return Merging(to_host(self.state), (stop, factor))
        self.state[FACTOR], self.state[STOP] = float(factor), float(stop)
        return Merging(to_host(self._over_ranks()))  # a new tensor, which nothing writes into

    def _over_ranks(self) -> Tensor:
        """The states of all ranks as one."""
        states = gather(self.state)
        parts = (torch.stack(part) for part in zip(*map(self.sections.split, states), strict=True))
        moments, histograms, sums, pairs = merge_ranks((*parts,), *self._kept_by)  # type: ignore[arg-type]
        votes = torch.stack(states)[:, -VOTES:].amax(0)
        return torch.cat([moments.flatten(), histograms.flatten(), sums.flatten(), pairs.flatten(), votes])

    def metric_values(self, counts: Any) -> dict[tuple[int, str], float]:
        """The value of every user's metric whose row was filled on any rank.

        Args:
            counts: elements of every row, a vector, merged over ranks.
        """
        return self.users.metric_values(counts, self._touched)

    @property
    def only_moments(self) -> bool:
        """Whether no row keeps more than moments."""
        return not (self._more_than_moments or self._pair_slots)
