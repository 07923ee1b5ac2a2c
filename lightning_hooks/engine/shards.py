"""Tensors of which every rank holds a part (`DTensor`, as FSDP2 makes them): what transforms are given of them.

A transform that treats each element by itself gets the part. Any other gets the whole, gathered from all ranks, and each rank
keeps its part of the result: norms, means over rows, or the largest of all elements are then what they are without sharding.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from lightning_hooks.errors import UnsupportedError
from lightning_hooks.select import Target


def is_sharded(tensor: object) -> bool:
    """Whether a tensor is a `DTensor`."""
    module = sys.modules.get("torch.distributed.tensor")  # not loaded, there can be none; loading it takes a while
    return module is not None and isinstance(tensor, module.DTensor)


def parts_of(tensors: Sequence[Tensor]) -> list[Tensor]:
    """What this rank holds of each tensor; the memory is theirs."""
    return [tensor.to_local() if is_sharded(tensor) else tensor for tensor in tensors]  # type: ignore[attr-defined]


def wholes_of(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Each tensor whole: all ranks must ask together. Those that were whole are the same objects."""
    return [tensor.full_tensor() if is_sharded(tensor) else tensor for tensor in tensors]  # type: ignore[attr-defined]


def put_back(tensor: Tensor, whole: Tensor) -> None:
    """Overwrite a tensor with its part of a whole that every rank has alike.

    Args:
        tensor: sharded.
        whole: of its full shape.
    """
    from torch.distributed.tensor import distribute_tensor

    held: Any = tensor
    # No rank sends anything: each takes its part of what it has.
    new = distribute_tensor(whole, held.device_mesh, held.placements, src_data_rank=None)
    held.to_local().copy_(new.to_local())


def refuse_sharded(targets: Iterable[Target[Any]], where: str, what: str) -> None:
    """Refuse what needs a tensor hook on a sharded parameter: torch registers it and never calls it.

    Args:
        targets: the parameters that a rule means.
        where: the option, for the message.
        what: what would never run.

    Raises:
        UnsupportedError: with the first such parameter and the way out.
    """
    for target in targets:
        if is_sharded(target.value):
            raise UnsupportedError(
                f"{where}: {target.name!r} is sharded (FSDP2), and torch never calls a tensor hook on such a parameter: {what}"
            )
