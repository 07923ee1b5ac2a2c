"""Where bad numbers come from: an operator that made them of good ones, or a tensor that had them when the step began."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lightning_hooks.engine.recording.module_calls import Call
from lightning_hooks.engine.recording.source_lines import Line
from lightning_hooks.recorder.record import Operation, TensorSummary


@dataclass(frozen=True, eq=False)
class Leaf:
    """A tensor that was bad when the step began.

    Args:
        kind: `batch`, `param`, `buffer`, `grad` or `state`.
        name: of the tensor: `batch['image']`, or the dotted name of the parameter or buffer.
        has_nan: whether it holds NaN.
        is_intended: whether its infinities are a mask.
        order: the position among all origins.
        summary: its numbers.
    """

    kind: str
    name: str
    has_nan: bool
    is_intended: bool
    order: int
    summary: TensorSummary


@dataclass(frozen=True, eq=False)
class Birth:
    """An operator that gave a number that is not finite, and read only numbers that are, or that are infinite on purpose.

    Args:
        operator: its name: `aten.log`.
        direction: `forward`, `backward` or `update`.
        call: the call of the module that ran it; in backward, the call whose operator is differentiated.
        line: the line of the user's code; in backward, that of the operator that is differentiated.
        node: the node of autograd; empty in the other directions.
        has_nan: whether the result has NaN.
        is_intended: whether the result has only infinities that come from a literal.
        order: the position among all origins.
        inputs: its operands.
        result: what it gave.
        scalars: the numbers among its arguments that are not finite.
        cause: an origin in the forward pass whose infinity it read in the backward pass of a finite loss.
        remarks: what else is known of its operands.
        exceeds_range: whether the result is infinite because its type has no larger numbers; None if it is not known.
    """

    operator: str
    direction: str
    call: Call
    line: Line | None
    node: str
    has_nan: bool
    is_intended: bool
    order: int
    inputs: tuple[TensorSummary, ...]
    result: TensorSummary
    scalars: Mapping[str, float] = field(default_factory=dict)
    cause: Origin | None = None
    remarks: tuple[str, ...] = ()
    exceeds_range: bool | None = None

    def operation(self) -> Operation:
        return Operation(
            self.operator,
            self.direction,
            self.call.module,
            self.call.type,
            self.call.number,
            self.line.source if self.line else "",
            self.line.text if self.line else "",
            self.node,
            self.inputs,
            self.result,
        )


Origin = Leaf | Birth


@dataclass(frozen=True)
class _WrittenRange:
    """A range of a storage that was written with bad numbers, in bytes from its start."""

    start: int
    end: int
    origin: Origin


class OriginMap:
    """The origin of the bad numbers of each storage, and the storages that hold uninitialised memory.

    A storage is known by its address. That of a storage that is freed may come again: each operator that returns new memory
    calls `renew`.
    """

    def __init__(self) -> None:
        self._bad: dict[int, list[_WrittenRange]] = {}
        self._uninitialised: set[int] = set()

    def renew(self, tensor: Tensor, origin: Origin | None, *, is_initialised: bool = True) -> None:
        """Note a tensor in new memory.

        Args:
            tensor: what an operator returned.
            origin: of its bad numbers; None if all are good.
            is_initialised: whether its elements were written at all.
        """
        address = address_of(tensor)
        if address:
            self._bad.pop(address, None)
            self._uninitialised.discard(address)
            if not is_initialised:
                self._uninitialised.add(address)
            elif origin is not None:
                self._bad[address] = [_WrittenRange(*_byte_range(tensor), origin)]

    def write(self, tensor: Tensor, origin: Origin | None) -> None:
        """Note that a tensor was written in place.

        Args:
            tensor: the tensor, which may be a view of a part of its storage.
            origin: of its bad numbers; None if all are good.
        """
        address = address_of(tensor)
        if not address:
            return
        start, end = _byte_range(tensor)
        if _is_packed(tensor, start, end):
            self._bad[address] = [each for each in self._bad.get(address, ()) if each.start < start or each.end > end]
            if start == 0 and end == tensor.untyped_storage().nbytes():
                self._uninitialised.discard(address)
        if origin is not None:
            # Parts of this range may keep earlier origins. `origin_of` looks up the last entry first.
            self._bad.setdefault(address, []).append(_WrittenRange(start, end, origin))

    def origin_of(self, tensor: Tensor) -> Origin | None:
        """The origin of the bad numbers of a tensor that has any; None if it is not known."""
        address = address_of(tensor)
        start, end = _byte_range(tensor) if address else (0, 0)
        known = (each for each in reversed(self._bad.get(address, ())) if each.start < end and each.end > start)
        return next((each.origin for each in known), None)

    def is_uninitialised(self, tensor: Tensor) -> bool:
        return address_of(tensor) in self._uninitialised


def address_of(tensor: Tensor) -> int:
    """The address of the storage; 0 if there is none, as for sparse and nested tensors."""
    part = _strided_part(tensor)
    try:
        return 0 if part is None else part.untyped_storage().data_ptr()
    except RuntimeError:
        return 0


def _strided_part(tensor: Any) -> Tensor | None:
    """The strided tensor that holds the elements, of a sharded tensor those of this rank; None if there is no such tensor."""
    part = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    if not isinstance(part, Tensor) or part.layout is not torch.strided or part.is_meta or part.is_nested or part.is_quantized:
        return None
    return part


def _byte_range(tensor: Tensor) -> tuple[int, int]:
    """The first byte of a tensor in its storage, and the byte after its last."""
    part = _strided_part(tensor)
    if part is None:
        return 0, 0
    size = part.element_size()
    start = int(part.storage_offset()) * size
    if not part.numel():
        return start, start
    last = sum((length - 1) * stride for length, stride in zip(part.shape, part.stride(), strict=True))
    return start, start + (int(last) + 1) * size


def _is_packed(tensor: Tensor, start: int, end: int) -> bool:
    """Whether a tensor has every element between its first and its last byte."""
    return end - start == tensor.numel() * tensor.element_size()
