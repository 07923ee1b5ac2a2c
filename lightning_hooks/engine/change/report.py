"""What a transform did in a step: norm before and after, cosine between them, and whether it changed anything.

Norms come from the moments that the kernels measure in one pass. For a transform that `keeps_direction` that is enough: the
cosine follows from the norms. For any other the product of before and after is needed, and so is a copy of what it overwrites.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from lightning_hooks.errors import TransformError
from lightning_hooks.stats import kernels
from lightning_hooks.stats.moments import MOMENTS
from lightning_hooks.stats.schema import COUNT, M2, MEAN, NONFINITE
from lightning_hooks.stats.tensor_kinds import elements
from lightning_hooks.transforms._batch import foreach

_EXACT: Final = (torch.float32, torch.float64)  # scaled without a rounding that shows in the cosine


class Measured(NamedTuple):
    """Several tensors: in NumPy where all of them are in host memory, else in torch, on the device of the first.

    Args:
        moments: [tensors, 9].
        squares: squared norms [tensors].
    """

    moments: Any
    squares: Any


Before: TypeAlias = Measured | list[Tensor]
"""What is kept of tensors that a transform is given; the tensors are copies if it may overwrite them."""

Sums: TypeAlias = tuple[Any, Any, Any, Any]
"""Over the tensors of one call: squares before and after, product, whether any changed; numbers, or scalars on a device."""


class Report:
    """Sums over the calls of a step; on another device than the CPU they stay there until the step ends."""

    def __init__(self, keeps_direction: bool = False) -> None:
        self.keeps_direction = keeps_direction
        self.reported_steps = 0
        self.acted_steps = 0
        self._calls: list[Sums] = []
        self._device: torch.device | None = None
        self._apart = False

    def begin(self) -> None:
        self._calls = []

    @np.errstate(all="ignore")
    def before(self, tensors: Sequence[Tensor], *, owned: bool) -> Before:
        """Keep what is needed of tensors that the transform is given next, and may overwrite if they are `owned`."""
        if self.keeps_direction and all(tensor.dtype in _EXACT for tensor in tensors):
            return _measured(tensors)
        return [tensor.clone() if owned else tensor for tensor in tensors]

    @np.errstate(all="ignore")
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

    @np.errstate(all="ignore")
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

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.reported_steps, self.acted_steps = state["reported_steps"], state["acted_steps"]


def _measured(tensors: Sequence[Tensor]) -> Measured:
    rows = kernels.host.read_many(tensors)
    if None in rows:  # complex, sparse, on another device
        tensors = [_elements(tensor) for tensor in tensors]
        rows = kernels.host.read_many(tensors)
    on_host = None not in rows
    moments: Any = np.frombuffer(b"".join(rows)).reshape(-1, MOMENTS) if on_host else _moments_on_device(tensors)
    squares = moments[:, M2] + moments[:, COUNT] * moments[:, MEAN] ** 2
    broken = moments[:, NONFINITE] > 0  # their squares do not tell NaN from infinity
    if not on_host:
        norms = foreach("norm", list(tensors), 2, dtype=torch.float64)
        return Measured(moments, torch.where(broken, torch.stack([norm.to(squares) for norm in norms]).square(), squares))
    for i in broken.nonzero()[0].tolist():
        squares[i] = tensors[i].double().square().sum()
    return Measured(moments, squares)


def _shared(measured: Measured, shares: Sequence[float] | None) -> Measured:
    """With the shares of the squares that count on this rank."""
    if shares is None:
        return measured
    squares = measured.squares
    if len({*shares}) == 1:
        return measured._replace(squares=squares * shares[0])
    if isinstance(squares, Tensor):  # numbers of the host as a tensor would wait for the device
        return measured._replace(squares=torch.stack([each * share for each, share in zip(squares, shares, strict=True)]))
    return measured._replace(squares=squares * np.array(shares))


def _moments_on_device(tensors: Sequence[Tensor]) -> Tensor:
    device = tensors[0].device
    if all(tensor.device == device for tensor in tensors):
        return kernels.measure_many(tensors)
    return torch.stack([kernels.measure(tensor).to(device) for tensor in tensors])


def _sums_of_factor(squares: Any, factor: Tensor | float) -> Sums:
    """Sums for tensors that were all multiplied by one number."""
    total, by = squares.sum(), factor
    if not isinstance(total, Tensor):
        total, by = float(total), float(factor)
    elif isinstance(factor, Tensor):
        by = factor.to(total)
    return total, total * by**2, total * by, (total != 0) & (by != 1)


def _sums_of_scaled(old: Measured, new: Measured) -> Sums:
    """Of tensors each of which was multiplied by a number."""
    product = (old.squares**0.5 * new.squares**0.5).sum()
    return old.squares.sum(), new.squares.sum(), product, _rows_differ(old.moments, new.moments).any()


def _sums_of_any(before: Sequence[Tensor], after: Sequence[Tensor], shares: Sequence[float] | None) -> Sums:
    """Of tensors of which nothing else is known."""
    old, new = _shared(_measured(before), shares), _shared(_measured(after), shares)
    pairs = [_compare(*pair) for pair in zip(before, after, _rows_differ(old.moments, new.moments), strict=True)]
    products, acted = zip(*pairs, strict=True)
    product = sum(products) if shares is None else sum(p * share for p, share in zip(products, shares, strict=True))
    return old.squares.sum(), new.squares.sum(), product, sum(acted)


def _rows_differ(old: Any, new: Any) -> Any:
    return ((old != new) & ((old == old) | (new == new))).any(1)  # a moment that is not known is NaN


def _compare(old: Tensor, new: Tensor, differ: Any) -> tuple[Any, Any]:
    """The product of two tensors, and whether they differ, which equal moments do not rule out."""
    b, a = _elements(old), _elements(new)
    if b.shape != a.shape:  # sparse with other stored elements
        b, a, differ = _elements(old.to_dense()), _elements(new.to_dense()), False
    product = torch.dot(b.reshape(-1).double(), a.reshape(-1).double())
    if not b.is_cpu:
        return product, (~((a == b) | (a.isnan() & b.isnan()))).any().double()
    if not differ:
        differ = not (torch.equal(a, b) or bool(((a == b) | (a.isnan() & b.isnan())).all()))
    return product.item(), float(differ)


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
