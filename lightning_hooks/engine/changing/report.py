"""What a transform did in a step: norm before and after, cosine between them, and whether it changed anything.

Norms come from the moments that the kernels measure in one pass. For a transform that `keeps_direction` that is enough: the
cosine follows from the norms. For any other the product of before and after is needed, and so is a copy of what it overwrites.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Any, Final, NamedTuple, TypeAlias

import torch
from torch import Tensor

from lightning_hooks.errors import TransformError
from lightning_hooks.saved_state import read_count, read_mapping
from lightning_hooks.stats import kernels
from lightning_hooks.stats.moments import MOMENTS
from lightning_hooks.stats.schema import COUNT, M2, MEAN, NONFINITE
from lightning_hooks.tensor_kinds import elements, is_plain
from lightning_hooks.transforms._batch import foreach

_EXACT: Final = (torch.float32, torch.float64)  # scaled without a rounding that shows in the cosine
_ROW: Final = Struct(f"{MOMENTS}d")
_TOGETHER: Final = 8  # tensors whose products are in memory at once
_SMALLEST: Final = 1e-25  # of products, by the norms
_GREATEST: Final = 1e25


class Measured(NamedTuple):
    """Several tensors: rows and numbers where all of them are in host memory, else tensors on the device of the first.

    In host memory these are no arrays: what NumPy takes to begin is more than all the rest for the one tensor of a call in
    backward.

    Args:
        moments: a row of moments for each.
        squares: the squared norm of each.
    """

    moments: list[tuple[float, ...]] | Tensor
    squares: list[float] | Tensor


Before: TypeAlias = Measured | list[Tensor]
"""What is kept of tensors that a transform is given; the tensors are copies if it may overwrite them."""

Number: TypeAlias = float | Tensor
Sums: TypeAlias = tuple[Number, Number, Number, Number]
"""Over the tensors of one call: squares before and after, product, whether any changed; numbers, or scalars on a device."""


class Report:
    """Sums over the calls of a step; on another device than the CPU they stay there until the step ends."""

    def __init__(self, keeps_direction: bool) -> None:
        self.keeps_direction = keeps_direction
        self.reported_steps = 0
        self.acted_steps = 0
        self._calls: list[Sums] = []
        self._device: torch.device | None = None
        self._apart = False

    def begin(self) -> None:
        self._calls = []

    def before(self, tensors: Sequence[Tensor], *, owned: bool) -> Before:
        """Keep what is needed of tensors that the transform is given next, and may overwrite if they are `owned`."""
        if self.keeps_direction and all(tensor.dtype in _EXACT for tensor in tensors) and (owned or _contiguous(tensors)):
            return _measured(tensors)
        return [tensor.clone() if owned else tensor for tensor in tensors]

    def after(
        self,
        before: Before,
        results: Sequence[Tensor],
        *,
        factor: Tensor | float | None = None,
        shares: Sequence[float] | None = None,
    ) -> None:
        """Add a call to the step.

        Args:
            before: of the same tensors.
            results: what the transform returned.
            factor: by which it multiplied all of them, if the transform says so.
            shares: where ranks have other elements, what the sums over each tensor are multiplied by before those of all ranks
                are added up, when the step ends; None where every rank has all.
        """
        self._apart = shares is not None
        self._device = results[0].device
        if isinstance(before, list):
            self._calls.append(_sums_of_any(before, results, shares))
        elif factor is None:
            self._calls.append(_sums_of_scaled(_shared(before, shares), _shared(_measured(results), shares)))
        else:
            self._calls.append(_sums_of_factor(_shared(before, shares).squares, factor))

    def finish(self) -> dict[str, float]:
        """What happened in the step: name to value; empty if the transform was not called."""
        if not self._calls:
            return {}
        totals = _on_host(self._calls)
        self._calls = []
        if self._apart:
            over_ranks = torch.tensor(totals, dtype=torch.float64, device=self._device)
            torch.distributed.all_reduce(over_ranks)
            totals = over_ranks.tolist()
        before, after, product, acted = totals
        self.reported_steps += 1
        self.acted_steps += bool(acted)
        out = {"norm_before": before**0.5, "norm_after": after**0.5, "acted": self.acted_steps / self.reported_steps}
        if before > 0 and after > 0:
            out["cosine"] = product / (before**0.5 * after**0.5)
        return out

    def state_dict(self) -> dict[str, int]:
        return {"reported_steps": self.reported_steps, "acted_steps": self.acted_steps}

    def load_state_dict(self, state: Any) -> None:
        """Restore the counts of a checkpoint, or raise `DamagedState` before anything is changed."""
        saved = read_mapping(state, "report", ("reported_steps", "acted_steps"))
        reported = read_count(saved["reported_steps"], "report['reported_steps']")
        acted = read_count(saved["acted_steps"], "report['acted_steps']", below=reported + 1)
        self.reported_steps, self.acted_steps = reported, acted


def _measured(tensors: Sequence[Tensor]) -> Measured:
    rows = kernels.host.read_many(tensors)
    if None in rows:  # complex, sparse, on another device
        tensors = [_elements(tensor) for tensor in tensors]
        rows = kernels.host.read_many(tensors)
    if None in rows:
        return _measured_on_device(tensors)
    moments = list(_ROW.iter_unpack(b"".join(rows)))
    squares = [row[M2] + row[COUNT] * row[MEAN] * row[MEAN] for row in moments]
    for i, row in enumerate(moments):
        if row[NONFINITE] > 0:  # the moments do not tell NaN from infinity
            squares[i] = tensors[i].double().square().sum().item()
    return Measured(moments, squares)


def _measured_on_device(tensors: Sequence[Tensor]) -> Measured:
    device = tensors[0].device
    if all(tensor.device == device for tensor in tensors):
        moments = kernels.measure_many(tensors)
    else:
        moments = torch.stack([kernels.measure(tensor).to(device) for tensor in tensors])
    squares = moments[:, M2] + moments[:, COUNT] * moments[:, MEAN] ** 2
    norms = foreach("norm", list(tensors), 2, dtype=torch.float64)
    whole = torch.stack([norm.to(squares) for norm in norms]).square()
    return Measured(moments, torch.where(moments[:, NONFINITE] > 0, whole, squares))


def _contiguous(tensors: Sequence[Tensor]) -> bool:
    """Whether what is computed from these tensors has their order in memory, so that equal elements have equal moments."""
    return all(tensor.layout is not torch.strided or tensor.is_contiguous() for tensor in tensors)


def _in_one_order(old: Tensor, new: Tensor) -> bool:
    return old.layout is not torch.strided or old.stride() == new.stride()


def _shared(measured: Measured, shares: Sequence[float] | None) -> Measured:
    """With the shares of the squares that count on this rank."""
    squares = measured.squares
    return measured if shares is None else measured._replace(squares=_times(squares, shares))


def _times(numbers: list[float] | Tensor, shares: Sequence[float]) -> list[float] | Tensor:
    if not isinstance(numbers, Tensor):
        return [number * share for number, share in zip(numbers, shares, strict=True)]
    if len({*shares}) == 1:
        return numbers * shares[0]
    # Numbers of the host as a tensor would wait for the device.
    return torch.stack([each * share for each, share in zip(numbers, shares, strict=True)])


def _total(numbers: Sequence[Number] | Tensor) -> Number:
    return numbers.sum() if isinstance(numbers, Tensor) else sum(numbers)


def _sums_of_factor(squares: list[float] | Tensor, factor: Tensor | float) -> Sums:
    """Sums for tensors that were all multiplied by one number."""
    total, by = _total(squares), factor
    if not isinstance(total, Tensor):
        by = float(factor)
    elif isinstance(factor, Tensor):
        by = factor.to(total)
    return total, total * by * by, total * by, (total != 0) & (by != 1)


def _sums_of_scaled(old: Measured, new: Measured) -> Sums:
    """Of tensors each of which was multiplied by a number."""
    products: Any
    if isinstance(old.squares, Tensor) and isinstance(new.squares, Tensor):
        products = old.squares**0.5 * new.squares**0.5
    else:
        products = [before**0.5 * after**0.5 for before, after in zip(old.squares, new.squares, strict=True)]
    differ = _rows_differ(old.moments, new.moments)
    acted = differ.any() if isinstance(differ, Tensor) else any(differ)
    return _total(old.squares), _total(new.squares), _total(products), acted


def _sums_of_any(before: Sequence[Tensor], after: Sequence[Tensor], shares: Sequence[float] | None) -> Sums:
    """Of tensors of which nothing else is known."""
    old, new = _measured(before), _measured(after)
    differ = _rows_differ(old.moments, new.moments)
    known: dict[int, tuple[Number, Number]] = {}
    if not isinstance(differ, Tensor):
        # Moments of equal elements in another order in memory may differ in their rounding.
        differ = [each and _in_one_order(b, a) for each, b, a in zip(differ, before, after, strict=True)]
        known = _compare_together(before, after, old, new, differ)
    pairs = [known.get(i) or _compare(*pair) for i, pair in enumerate(zip(before, after, differ, strict=True))]
    products: list[Any] = [product for product, _ in pairs]
    if shares is not None:
        products = [product * share for product, share in zip(products, shares, strict=True)]
    old, new = _shared(old, shares), _shared(new, shares)
    return _total(old.squares), _total(new.squares), _total(products), _total([acted for _, acted in pairs])


def _rows_differ(old: Any, new: Any) -> Any:
    """Whether the moments of each tensor differ; one that is not known is NaN."""
    if isinstance(old, Tensor):
        return ((old != new) & ((old == old) | (new == new))).any(1)
    return [
        row != other and any(one != two and (one == one or two == two) for one, two in zip(row, other, strict=True))
        for row, other in zip(old, new, strict=True)
    ]


def _compare_together(
    before: Sequence[Tensor], after: Sequence[Tensor], old: Measured, new: Measured, differ: Sequence[bool]
) -> dict[int, tuple[Number, Number]]:
    """As `_compare`, by index, for those tensors in host memory that are compared in few calls."""
    found: dict[int, tuple[Number, Number]] = {}
    multiplied: list[int] = []
    for i, (b, a) in enumerate(zip(before, after, strict=True)):
        if b.layout is torch.strided and not differ[i] and torch.equal(b, a):
            found[i] = old.squares[i], 0.0
        elif differ[i] and b.dtype in _EXACT and b.layout is torch.strided and is_plain(b) and is_plain(a):
            # In float32 a product has the rounding of its elements, unless it overflows or vanishes.
            size = (old.squares[i] * new.squares[i]) ** 0.5 / b.numel()
            if _SMALLEST < size < _GREATEST:
                multiplied.append(i)
    for first in range(0, len(multiplied), _TOGETHER):
        taken = multiplied[first : first + _TOGETHER]
        made = foreach("mul", [before[i] for i in taken], [after[i] for i in taken])
        rows = _ROW.iter_unpack(b"".join(kernels.host.read_many(made)))
        found |= {i: (row[COUNT] * row[MEAN], 1.0) for i, row in zip(taken, rows, strict=True)}
    return found


def _compare(old: Tensor, new: Tensor, differ: Any) -> tuple[Number, Number]:
    """The product of two tensors, and whether they differ, which equal moments do not rule out."""
    b, a = _elements(old), _elements(new)
    if b.shape != a.shape or not _stored_alike(old, new):
        b, a, differ = _elements(old.to_dense()), _elements(new.to_dense()), False
    product = torch.dot(b.reshape(-1).double(), a.reshape(-1).double())
    if not b.is_cpu:
        return product, (~((a == b) | (a.isnan() & b.isnan()))).any().double()
    if not differ:
        differ = not (torch.equal(a, b) or bool(((a == b) | (a.isnan() & b.isnan())).all()))
    return product.item(), float(differ)


def _stored_alike(old: Tensor, new: Tensor) -> bool:
    """Whether two tensors of one layout store the same elements, if they are sparse."""
    return old.layout is not torch.sparse_coo or torch.equal(old.coalesce().indices(), new.coalesce().indices())


def _on_host(calls: Sequence[Sums]) -> list[float]:
    """The totals over calls; numbers on a device are fetched together."""
    numbers = [number for call in calls for number in call]
    device = next((number.device for number in numbers if isinstance(number, Tensor)), None)
    if device is None:
        return [float(sum(column)) for column in zip(*calls, strict=True)]
    there = [torch.as_tensor(number, device=device).to(device, torch.float64) for number in numbers]
    totals: list[float] = torch.stack(there).reshape(len(calls), -1).sum(0).tolist()
    return totals


def _elements(tensor: Tensor) -> Tensor:
    found = elements(tensor)
    if found is None:
        raise TransformError(f"a gradient of layout {tensor.layout} cannot be reported")
    return found[0]


def keeps_direction(transform: Any) -> bool:
    """Whether a transform says so; a subclass with a `__call__` of its own has to repeat it."""
    classes = type(transform).__mro__
    says, calls = (
        next((i for i, each in enumerate(classes) if name in vars(each)), None) for name in ("keeps_direction", "__call__")
    )
    return bool(getattr(transform, "keeps_direction", False)) and says is not None and calls is not None and says <= calls
