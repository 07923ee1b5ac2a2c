"""What a transform did in a step: norm before and after, cosine between them, and whether it changed anything.

Norms come from the moments that the kernels measure in one pass. If the transform `keeps_direction`, the cosine follows from
the norms. For any other transform the product of the tensors before and after is needed, and so is a copy of tensors that the
transform overwrites.
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

_EXACT: Final = (torch.float32, torch.float64)  # dtypes in which the rounding of products does not show in the cosine
_ROW: Final = Struct(f"{MOMENTS}d")
# The cosine needs the product of each tensor before and after the transform. Compute it for so many tensors at once: a product
# is as large as its tensor.
_TOGETHER: Final = 8
# Multiply tensors in float32 only if the usual product of two elements, estimated from the norms, is between these bounds.
# Outside them products could underflow or overflow.
_SMALLEST: Final = 1e-25
_GREATEST: Final = 1e25


class Measured(NamedTuple):
    """Measurements of several tensors: lists if all tensors are in host memory, else tensors on the device of the first.

    Lists are used instead of NumPy arrays, because a call in backward has one tensor, for which NumPy's overhead is greater
    than the rest of the report.

    Args:
        moments: a row of moments for each tensor.
        squares: the squared norm of each tensor.
    """

    moments: list[tuple[float, ...]] | Tensor
    squares: list[float] | Tensor


Before: TypeAlias = Measured | list[Tensor]
"""Tensors before a transform: measurements, or the tensors themselves; copies if the transform may overwrite them."""

Number: TypeAlias = float | Tensor
Sums: TypeAlias = tuple[Number, Number, Number, Number]
"""Sums over the tensors of one call: squares before, squares after, products, and whether any changed (above 0).

Numbers, or scalars on a device."""


class Report:
    """Adds up the calls of a step. Sums of tensors on another device stay on the device until the step ends."""

    def __init__(self, keeps_direction: bool) -> None:
        self.keeps_direction = keeps_direction
        self.reported_steps = 0
        self.acted_steps = 0
        self._calls: list[Sums] = []
        self._device: torch.device | None = None
        self._is_sharded = False

    def begin(self) -> None:
        self._calls = []

    def before(self, tensors: Sequence[Tensor], *, owned: bool) -> Before:
        """Measure or copy tensors before they are passed to the transform, which may overwrite them if they are `owned`."""
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
            before: the result of `before` for the same tensors.
            results: the tensors that the transform returned.
            factor: the number by which the transform multiplied all of them; None if it does not report such a number.
            shares: for shards, the factor of the sums over each tensor, see `share_of`; sums are then added up over ranks when
                the step ends. None if every rank has the whole tensors.
        """
        self._is_sharded = shares is not None
        self._device = results[0].device
        if isinstance(before, list):
            self._calls.append(_sums_of_any(before, results, shares))
        elif factor is None:
            self._calls.append(_sums_of_scaled(_shared(before, shares), _shared(_measured(results), shares)))
        else:
            self._calls.append(_sums_of_factor(_shared(before, shares).squares, factor))

    def finish(self) -> dict[str, float]:
        """The report of the step, name to value; empty if the transform was not called. Collective for sharded tensors."""
        if not self._calls:
            return {}
        totals = _on_host(self._calls)
        self._calls = []
        if self._is_sharded:
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
    # The kernel returns None for tensors that it cannot read: complex or sparse ones, and those on another device.
    if None in rows:
        tensors = [_elements(tensor) for tensor in tensors]
        rows = kernels.host.read_many(tensors)
    if None in rows:
        return _measured_on_device(tensors)
    moments = list(_ROW.iter_unpack(b"".join(rows)))
    squares = [row[M2] + row[COUNT] * row[MEAN] * row[MEAN] for row in moments]
    for i, row in enumerate(moments):
        # The moments do not tell NaN from infinity, so compute the sum of squares from the elements.
        if row[NONFINITE] > 0:
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
    """Whether results computed from these tensors keep the order of elements in memory, and so equal moments."""
    return all(tensor.layout is not torch.strided or tensor.is_contiguous() for tensor in tensors)


def _in_one_order(old: Tensor, new: Tensor) -> bool:
    return old.layout is not torch.strided or old.stride() == new.stride()


def _shared(measured: Measured, shares: Sequence[float] | None) -> Measured:
    """The measurements, with each square multiplied by the share of its tensor."""
    squares = measured.squares
    return measured if shares is None else measured._replace(squares=_times(squares, shares))


def _times(numbers: list[float] | Tensor, shares: Sequence[float]) -> list[float] | Tensor:
    if not isinstance(numbers, Tensor):
        return [number * share for number, share in zip(numbers, shares, strict=True)]
    if len({*shares}) == 1:
        return numbers * shares[0]
    # Multiply by one share at a time: copying all shares to the device as a tensor would wait for the device.
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
    """Sums for tensors each of which was multiplied by a number of its own."""
    products: Any
    if isinstance(old.squares, Tensor) and isinstance(new.squares, Tensor):
        products = old.squares**0.5 * new.squares**0.5
    else:
        products = [before**0.5 * after**0.5 for before, after in zip(old.squares, new.squares, strict=True)]
    differ = _rows_differ(old.moments, new.moments)
    acted = differ.any() if isinstance(differ, Tensor) else any(differ)
    return _total(old.squares), _total(new.squares), _total(products), acted


def _sums_of_any(before: Sequence[Tensor], after: Sequence[Tensor], shares: Sequence[float] | None) -> Sums:
    """Sums for tensors that were changed in any way."""
    old, new = _measured(before), _measured(after)
    differ = _rows_differ(old.moments, new.moments)
    compared: dict[int, tuple[Number, Number]] = {}
    if not isinstance(differ, Tensor):
        # If the elements of a tensor changed their order in memory, moments may differ by rounding although the elements are
        # equal.
        differ = [each and _in_one_order(b, a) for each, b, a in zip(differ, before, after, strict=True)]
        compared = _compare_together(before, after, old, new, differ)
    pairs = [compared.get(i) or _compare(*pair) for i, pair in enumerate(zip(before, after, differ, strict=True))]
    products: list[Any] = [product for product, _ in pairs]
    if shares is not None:
        products = [product * share for product, share in zip(products, shares, strict=True)]
    old, new = _shared(old, shares), _shared(new, shares)
    return _total(old.squares), _total(new.squares), _total(products), _total([acted for _, acted in pairs])


def _rows_differ(old: Any, new: Any) -> Any:
    """Whether the moments of each tensor differ. Two NaN count as equal."""
    if isinstance(old, Tensor):
        return ((old != new) & ((old == old) | (new == new))).any(1)
    return [
        row != other and any(one != two and (one == one or two == two) for one, two in zip(row, other, strict=True))
        for row, other in zip(old, new, strict=True)
    ]


def _compare_together(
    before: Sequence[Tensor], after: Sequence[Tensor], old: Measured, new: Measured, differ: Sequence[bool]
) -> dict[int, tuple[Number, Number]]:
    """Results of `_compare` by index, for tensors in host memory that few calls can compare together."""
    compared: dict[int, tuple[Number, Number]] = {}
    multiplied: list[int] = []
    for i, (b, a) in enumerate(zip(before, after, strict=True)):
        if b.layout is torch.strided and not differ[i] and torch.equal(b, a):
            compared[i] = old.squares[i], 0.0
        elif differ[i] and b.dtype in _EXACT and b.layout is torch.strided and is_plain(b) and is_plain(a):
            # Unless it overflows or underflows, a product in float32 is as exact as its two factors.
            size = (old.squares[i] * new.squares[i]) ** 0.5 / b.numel()
            if _SMALLEST < size < _GREATEST:
                multiplied.append(i)
    for first in range(0, len(multiplied), _TOGETHER):
        indices = multiplied[first : first + _TOGETHER]
        products = foreach("mul", [before[i] for i in indices], [after[i] for i in indices])
        rows = _ROW.iter_unpack(b"".join(kernels.host.read_many(products)))
        compared |= {i: (row[COUNT] * row[MEAN], 1.0) for i, row in zip(indices, rows, strict=True)}
    return compared


def _compare(old: Tensor, new: Tensor, differ: Any) -> tuple[Number, Number]:
    """The dot product of two tensors, and whether they differ. `differ` is True if their moments differ."""
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
    on_device = [torch.as_tensor(number, device=device).to(device, torch.float64) for number in numbers]
    totals: list[float] = torch.stack(on_device).reshape(len(calls), -1).sum(0).tolist()
    return totals


def _elements(tensor: Tensor) -> Tensor:
    stored = elements(tensor)
    if stored is None:
        raise TransformError(f"a gradient of layout {tensor.layout} cannot be reported")
    return stored[0]


def keeps_direction(transform: Any) -> bool:
    """Whether a transform declares `keeps_direction`. A subclass with a `__call__` of its own has to declare it again."""
    classes = type(transform).__mro__
    declared, called = (
        next((i for i, each in enumerate(classes) if name in vars(each)), None) for name in ("keeps_direction", "__call__")
    )
    if declared is None or called is None or declared > called:
        return False
    return bool(getattr(transform, "keeps_direction", False))
