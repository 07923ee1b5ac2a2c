"""Sums over the tensors of one call before and after a transform: squares, products, and whether any tensor changed.

The moments that the kernels measure in one pass give the squares. If a transform keeps the direction, the products follow from
the squares. For any other transform the product of the tensors before and after is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Any, Final, NamedTuple, TypeAlias

import torch
from torch import Tensor

from lightning_hooks.errors import TransformError
from lightning_hooks.foreach import foreach
from lightning_hooks.stats import kernels
from lightning_hooks.stats.moments import MOMENTS
from lightning_hooks.stats.schema import COUNT, M2, MEAN, NONFINITE
from lightning_hooks.tensor_kinds import elements, is_plain

EXACT: Final = (torch.float32, torch.float64)
"""The dtypes in which products are rounded so little that the cosine does not show it."""
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


def measured(tensors: Sequence[Tensor]) -> Measured:
    """The measurements of tensors, by the compiled kernel if it can read all of them."""
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


def _in_one_order(old: Tensor, new: Tensor) -> bool:
    return old.layout is not torch.strided or old.stride() == new.stride()


def shared(measured: Measured, shares: Sequence[float] | None) -> Measured:
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


def sums_of_factor(squares: list[float] | Tensor, factor: Tensor | float) -> Sums:
    """Sums for tensors that were all multiplied by one number."""
    total, by = _total(squares), factor
    if not isinstance(total, Tensor):
        by = float(factor)
    elif isinstance(factor, Tensor):
        by = factor.to(total)
    return total, total * by * by, total * by, (total != 0) & (by != 1)


def sums_of_scaled(old: Measured, new: Measured) -> Sums:
    """Sums for tensors each of which was multiplied by a number of its own."""
    products: Any
    if isinstance(old.squares, Tensor) and isinstance(new.squares, Tensor):
        products = old.squares**0.5 * new.squares**0.5
    else:
        products = [before**0.5 * after**0.5 for before, after in zip(old.squares, new.squares, strict=True)]
    differ = _rows_differ(old.moments, new.moments)
    acted = differ.any() if isinstance(differ, Tensor) else any(differ)
    return _total(old.squares), _total(new.squares), _total(products), acted


def sums_of_any(before: Sequence[Tensor], after: Sequence[Tensor], shares: Sequence[float] | None) -> Sums:
    """Sums for tensors that were changed in any way."""
    old, new = measured(before), measured(after)
    differ = _rows_differ(old.moments, new.moments)
    compared: dict[int, tuple[Number, Number]] = {}
    if not isinstance(differ, Tensor):
        # If a tensor has its elements in another order in memory, moments may differ by rounding although no element differs.
        differ = [each and _in_one_order(b, a) for each, b, a in zip(differ, before, after, strict=True)]
        compared = _compare_together(before, after, old, new, differ)
    pairs = [compared.get(i) or _compare(*pair) for i, pair in enumerate(zip(before, after, differ, strict=True))]
    products: list[Any] = [product for product, _ in pairs]
    if shares is not None:
        products = [product * share for product, share in zip(products, shares, strict=True)]
    old, new = shared(old, shares), shared(new, shares)
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
        elif differ[i] and b.dtype in EXACT and b.layout is torch.strided and is_plain(b) and is_plain(a):
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


def on_host(calls: Sequence[Sums]) -> list[float]:
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
