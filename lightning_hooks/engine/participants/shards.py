"""Sharded tensors (`DTensor`, as FSDP2 makes them): passes them to transforms, and refuses what torch does not support.

An elementwise transform gets the shard of this rank. Any other transform gets the whole tensor, gathered from all ranks, and
each rank keeps its shard of the result, so norms and means are those of the whole tensor. Parameters are gathered only for a
transform that needs them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod
from typing import Any, NoReturn

from torch import Tensor, nn

from lightning_hooks.errors import TransformError, UnsupportedError
from lightning_hooks.rules.patterns import Target
from lightning_hooks.tensor_kinds import is_sharded, whole


def tensor_parallel_place(targets: Iterable[Target[Any]]) -> tuple[int, int]:
    """The place of this rank in its tensor-parallel group, whose ranks are given the same batch, and the size of the group.

    Returns (0, 1) without tensor parallelism. The dimension of the mesh is recognised by the names that Lightning and torch's
    examples use.
    """
    for target in targets:
        for tensor in target.value.parameters() if isinstance(target.value, nn.Module) else [target.value]:
            mesh: Any = getattr(tensor, "device_mesh", None)
            for name in {"tensor_parallel", "tp"}.intersection((mesh and mesh.mesh_dim_names) or ()):
                dimension = mesh.mesh_dim_names.index(name)
                return mesh.get_coordinate()[dimension], mesh.size(dimension)
    return 0, 1


def has_units(model: nn.Module) -> bool:
    """Whether units can be measured: with tensor parallelism a rank holds some units of a tensor, or copies of all."""
    return tensor_parallel_place([Target("", model, model)])[1] == 1


def shards_of(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The shard of each tensor that this rank holds, as a view; a tensor that is not sharded is returned itself."""
    return [tensor.to_local() if is_sharded(tensor) else tensor for tensor in tensors]  # type: ignore[attr-defined]


def share_of(tensor: object, ranks: int) -> float:
    """The factor for a rank's sums over a tensor, with which the sums of all ranks add up to one count of each element."""
    sharded: Any = tensor
    sizes = zip(sharded.device_mesh.shape, sharded.placements, strict=True) if is_sharded(tensor) else ()
    parts: int = prod(size for size, placement in sizes if not placement.is_replicate())
    return parts / ranks


def takes_shards(transform: object) -> bool:
    """Whether a transform may be given the shard of this rank instead of the whole."""
    return bool(getattr(transform, "elementwise", False))


def params_for(transform: object, params: Sequence[Tensor], reader: str) -> list[Tensor | None]:
    """The parameters that a transform reads: shards, whole parameters if it needs them, or a list that raises when read.

    `reader` is how a message names the transform: `apply[0].transform (Mine)`.
    """
    if takes_shards(transform):
        return list(shards_of(params))
    return [whole(param) for param in params] if getattr(transform, "needs_params", False) else NotGathered(reader)


class NotGathered(list[Tensor | None]):
    """Stands for sharded parameters if a transform does not declare that it needs them, and raises when it is read.

    Gathering the parameters when they are read would deadlock if only one rank reads them.
    """

    def __init__(self, reader: str) -> None:
        super().__init__()
        self.reader = reader

    def _refuse(self) -> NoReturn:
        raise TransformError(
            f"{self.reader} reads context.params, and the parameters are sharded (FSDP2): they are gathered only for a "
            "transform that asks for them. Set needs_params = True on it"
        )

    def __len__(self) -> int:
        self._refuse()

    def __iter__(self) -> Iterator[Tensor | None]:
        self._refuse()

    def __getitem__(self, index: Any) -> Any:
        self._refuse()


def put_back(tensor: Tensor, full: Tensor) -> None:
    """Overwrite a sharded tensor with its shard of a full tensor that is equal on all ranks."""
    from torch.distributed.tensor import distribute_tensor

    sharded: Any = tensor
    # With `src_data_rank=None` no rank sends anything: each takes its shard from its own copy of `full`.
    new = distribute_tensor(full, sharded.device_mesh, sharded.placements, src_data_rank=None)
    sharded.to_local().copy_(new.to_local())


def refuse_sharded(targets: Iterable[Target[Any]], where: str, what: str) -> None:
    """Refuse a rule that needs a tensor hook on a sharded parameter: torch registers the hook and never calls it."""
    for target in targets:
        if is_sharded(target.value):
            raise UnsupportedError(
                f"{where}: {target.name!r} is sharded (FSDP2), and torch never calls a tensor hook on such a parameter: {what}"
            )
