"""What a transform did in a step: norm before and after, cosine between them, and whether it changed anything.

Norms come from the moments that the kernels read in one pass. A transform that `keeps_direction` takes no more than that: the
cosine follows from the norms. For any other the product of before and after is needed, and so is a copy of what it overwrites.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lightning_hooks.errors import TransformError
from lightning_hooks.stats import kernels
from lightning_hooks.stats.moments import MOMENTS
from lightning_hooks.stats.schema import COUNT, M2, MEAN, NONFINITE
from lightning_hooks.stats.tensor_kinds import elements

_EXACT: Final = (torch.float32, torch.float64)  # scaled without a rounding that shows in the cosine


class Phases(NamedTuple):
    """Of several tensors: in NumPy where all of them are in host memory, else in torch, on the device of the first.

    Args:
        moments: [tensors, 9].
        squares: squared norms [tensors].
    """

    moments: Any
    squares: Any


class Before(NamedTuple):
    """What is kept of tensors that a transform is given: one of the two.

    Args:
        read: their `Phases`.
        tensors: themselves.
    """

    read: Any
    tensors: Sequence[Tensor] | None


class Report:
    """Sums over the tensors of a step; on another device than the CPU they stay there until the step is written.

    Args:
        keeps_direction: what the transform promises.
    """

    def __init__(self, keeps_direction: bool = False) -> None:
        self.keeps_direction = keeps_direction
        self.reported_steps = 0
        self.acted_steps = 0
        self._sums: list[Any] | None = None  # squares before and after, product, whether anything changed
        self._device: torch.device | None = None
        self._apart = False

    def begin(self) -> None:
        """Start a step."""
        self._sums = None

    @np.errstate(all="ignore")
    def before(self, tensors: Sequence[Tensor], *, owned: bool) -> Before:
        """Keep what is needed of tensors that the transform is given next.

        Args:
            tensors: as they come.
            owned: whether the transform may overwrite them.
        """
        if self.keeps_direction and all(tensor.dtype in _EXACT for tensor in tensors):
            return Before(_read(tensors), None)
        return Before(None, [tensor.clone() for tensor in tensors] if owned else tensors)

    @np.errstate(all="ignore")
    def after(
        self, before: Before, results: Sequence[Tensor], *, factor: Tensor | float | None = None, apart: bool = False
    ) -> None:
        """Add tensors to the step.

        Args:
            before: of the same tensors.
            results: as they leave.
            factor: by which all of them were multiplied, where the transform has said so.
            apart: whether every rank has other elements; the sums of all are added up when the step ends.
        """
        self._apart = apart
        self._device = results[0].device
        if before.tensors is not None:
            sums = _of_any(before.tensors, results)
        elif factor is None:
            sums = _of_scaled(before.read, _read(results))
        else:
            sums = _of_factor(before.read.squares, factor)
        self._sums = sums if self._sums is None else [_plus(*pair) for pair in zip(self._sums, sums, strict=True)]

    def finish(self) -> dict[str, float]:
        """What happened in the step: name to value; empty where nothing passed."""
        if self._sums is None:
            return {}
        before, after, product, acted = _summed_over_ranks(self._sums, self._device) if self._apart else _on_host(self._sums)
        self._sums = None
        self.reported_steps += 1
        self.acted_steps += bool(acted)
        out = {"norm_before": before**0.5, "norm_after": after**0.5, "acted": self.acted_steps / self.reported_steps}
        if before > 0 and after > 0:
            out["cosine"] = product / (before**0.5 * after**0.5)
        return out

    def state_dict(self) -> dict[str, int]:
        """The counts behind `acted`."""
        return {"reported_steps": self.reported_steps, "acted_steps": self.acted_steps}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on counting."""
        self.reported_steps, self.acted_steps = state["reported_steps"], state["acted_steps"]


def _read(tensors: Sequence[Tensor]) -> Phases:
    rows = kernels.host.read_many(tensors)
    if None in rows:  # complex, sparse, on another device
        tensors = [_elements(tensor) for tensor in tensors]
        rows = kernels.host.read_many(tensors)
    on_host = None not in rows
    moments: Any = np.frombuffer(b"".join(rows)).reshape(-1, MOMENTS) if on_host else _read_on_device(tensors)
    squares = moments[:, M2] + moments[:, COUNT] * moments[:, MEAN] ** 2
    broken = moments[:, NONFINITE] > 0  # of these the moments say how many are not finite, but not which of NaN and infinity
    if not on_host:
        norms = torch._foreach_norm(list(tensors), 2, dtype=torch.float64)
        return Phases(moments, torch.where(broken, torch.stack([norm.to(squares) for norm in norms]).square(), squares))
    for i in broken.nonzero()[0].tolist():
        squares[i] = tensors[i].double().square().sum()
    return Phases(moments, squares)


def _read_on_device(tensors: Sequence[Tensor]) -> Tensor:
    device = tensors[0].device
    if all(tensor.device == device for tensor in tensors):
        return kernels.measure_many(tensors)
    return torch.stack([kernels.measure(tensor).to(device) for tensor in tensors])


def _of_factor(squares: Any, factor: Tensor | float) -> list[Any]:
    """The sums of a report on tensors that were multiplied by one number."""
    by: Any = torch.as_tensor(factor).to(squares) if isinstance(squares, Tensor) else float(factor)
    return [squares.sum(), (squares * by**2).sum(), (squares * by).sum(), ((squares != 0) & (by != 1)).any()]


def _of_scaled(old: Phases, new: Phases) -> list[Any]:
    """Those on tensors each of which was multiplied by a number."""
    product = (old.squares**0.5 * new.squares**0.5).sum()
    return [old.squares.sum(), new.squares.sum(), product, _rows_differ(old.moments, new.moments).any()]


def _of_any(before: Sequence[Tensor], after: Sequence[Tensor]) -> list[Any]:
    """Those on tensors of which nothing else is known."""
    old, new = _read(before), _read(after)
    pairs = [_compare(*pair) for pair in zip(before, after, _rows_differ(old.moments, new.moments), strict=True)]
    return [old.squares.sum(), new.squares.sum(), *map(sum, zip(*pairs, strict=True))]


def _rows_differ(old: Any, new: Any) -> Any:
    return ((old != new) & ((old == old) | (new == new))).any(1)  # what is not known is NaN


def _compare(old: Tensor, new: Tensor, differ: Any) -> tuple[Any, Any]:
    """The product of two tensors, and whether they differ: their moments may be alike all the same."""
    b, a = _elements(old), _elements(new)
    if b.shape != a.shape:  # sparse with other stored elements
        b, a, differ = _elements(old.to_dense()), _elements(new.to_dense()), False
    product = torch.dot(b.reshape(-1).double(), a.reshape(-1).double())
    if not b.is_cpu:
        return product, (~((a == b) | (a.isnan() & b.isnan()))).any().double()
    if not differ:
        differ = not (torch.equal(a, b) or bool(((a == b) | (a.isnan() & b.isnan())).all()))
    return product.item(), float(differ)


def _on_host(sums: Sequence[Any]) -> list[float]:
    """Numbers that lie beside each other on a device, fetched together."""
    if not any(isinstance(each, Tensor) for each in sums):
        return [float(each) for each in sums]
    device = next(each.device for each in sums if isinstance(each, Tensor))
    fetched: list[float] = torch.stack([torch.as_tensor(each, dtype=torch.float64, device=device) for each in sums]).tolist()
    return fetched


def _summed_over_ranks(sums: Sequence[Any], device: torch.device | None) -> list[float]:
    all_of_them = torch.tensor(_on_host(sums), dtype=torch.float64, device=device)
    torch.distributed.all_reduce(all_of_them)
    summed: list[float] = all_of_them.tolist()
    return summed


def _plus(kept: Any, number: Any) -> Any:
    return kept + (number.to(kept.device) if isinstance(kept, Tensor) and isinstance(number, Tensor) else number)


def _elements(tensor: Tensor) -> Tensor:
    found = elements(tensor)
    if found is None:
        raise TransformError(f"a gradient of layout {tensor.layout} cannot be reported")
    return found[0]


def keeps_direction(transform: Any) -> bool:
    """Whether a transform says so; a subclass that calculates something else has to say it anew.

    Args:
        transform: any callable.
    """
    classes = type(transform).__mro__
    says, calls = (
        next((i for i, each in enumerate(classes) if name in vars(each)), None) for name in ("keeps_direction", "__call__")
    )
    return bool(getattr(transform, "keeps_direction", False)) and says is not None and calls is not None and says <= calls
