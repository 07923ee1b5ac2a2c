"""The kinds of tensors: which elements of a sparse, complex, sharded or subclassed tensor are read.

A tensor of a subclass is treated as a tensor inside `without_subclass()`: a subclass may refuse operations.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import Any, Final

import torch
from torch import Tensor

from lightning_hooks.private import private

TRANSFORMED: Final = "tensor inside a transform of torch.func (grad, vmap, jvp, …) or a batched backward"
"""In warnings, the kind of tensors that represent others while a function is transformed."""


class _Refusing(Tensor):
    @classmethod
    def __torch_function__(cls, *args: Any, **kwargs: Any) -> Any:
        raise TypeError


def _find() -> Any:
    with torch._C.DisableTorchFunctionSubclass():
        torch.empty(0, device="cpu").as_subclass(_Refusing).dim()
    return torch._C.DisableTorchFunctionSubclass


without_subclass: Any = private(
    "torch._C.DisableTorchFunctionSubclass", _find, nullcontext, "errors of a subclass of Tensor end the training"
)


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor is one of torch's own types, and not a subclass, which may lack operations."""
    return type(tensor) is Tensor or type(tensor) is torch.nn.Parameter


def is_dense(tensor: Tensor) -> bool:
    """Whether a tensor is one of torch's own types whose elements are all stored, as most operations require."""
    if not is_plain(tensor) or tensor.layout is not torch.strided:
        return False
    return not (tensor.is_meta or tensor.is_quantized or tensor.is_nested)


def is_transformed(tensor: Tensor) -> bool:
    """Whether a tensor exists only inside a transform of `torch.func` or a batched backward: it has no memory of its own."""
    if not is_dense(tensor):
        return False
    try:
        tensor.data_ptr()
    except RuntimeError:
        return True
    return False


def has_memory(tensor: Tensor) -> bool:
    """Whether the elements of a strided tensor are in memory: not inside a transform of `torch.func`, nor implied zeros."""
    try:
        return tensor.data_ptr() != 0 or not tensor.numel()
    except RuntimeError:
        return False


def plain_numbers(tensor: Tensor) -> Tensor:
    """A small tensor of torch's own type with the values of one of a subclass."""
    if type(tensor) is Tensor:
        return tensor
    with without_subclass():
        if tensor.data_ptr():
            return tensor.as_subclass(Tensor)
        device = tensor.device
    return torch.tensor(tensor.tolist(), dtype=torch.float64, device=device)


def with_memory(tensor: Tensor) -> Tensor:
    """A view of torch's own type for a tensor of a subclass; plain, sharded and nested tensors are returned unchanged.

    Raises:
        TypeError: the tensor has no memory.
    """
    if is_plain(tensor) or tensor.is_nested or hasattr(tensor, "to_local"):
        return tensor
    with without_subclass():
        if not tensor.data_ptr() and tensor.numel():
            raise TypeError("it has no memory of its own")
        return tensor.as_subclass(Tensor)


def inside_transform(tensor: Tensor) -> bool:
    """As `is_transformed`, but also True for an ordinary tensor while a transform is active."""
    return is_transformed(tensor) or is_transformed(torch.empty(0, device="cpu"))


def elements(tensor: Tensor) -> tuple[Tensor, int] | None:
    """The dense real tensor that holds the elements to measure, and the number of implied zeros that it does not hold.

    Complex numbers count as two elements, their real and imaginary parts, so that the norm is the usual one. Of a sparse
    tensor the stored values are measured, duplicates added up first; the rest are zeros. Of a nested tensor the elements of its
    parts are measured, and nothing for what a padded tensor would hold besides.

    Returns:
        The elements and the number of implied zeros, or None for a kind that cannot be measured.

    Example:
        >>> dense, zeros = elements(torch.eye(3).to_sparse())
        >>> dense.tolist(), zeros
        ([1.0, 1.0, 1.0], 6)
    """
    tensor = local_part(tensor.detach())
    if tensor.is_meta or tensor.is_quantized:
        return None
    zeros = 0
    if tensor.is_nested:
        tensor = tensor.contiguous().values()  # else the values of a jagged tensor may hold more than its parts
    elif tensor.layout is torch.sparse_coo:
        values = tensor.coalesce().values()
        zeros = tensor.numel() - values.numel()
        tensor = values
    elif tensor.layout in (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc):
        values = tensor.values()
        zeros = tensor.numel() - values.numel()
        tensor = values
    elif tensor.is_mkldnn:
        tensor = tensor.to_dense()
    if tensor.is_complex():
        tensor, zeros = torch.view_as_real(tensor.resolve_conj()), 2 * zeros
    return tensor.resolve_neg(), zeros


def is_sharded(tensor: object) -> bool:
    """Whether a tensor is a `DTensor`."""
    module = sys.modules.get("torch.distributed.tensor")  # not loaded, there can be none; loading it takes a while
    return module is not None and isinstance(tensor, module.DTensor)


def first_holder(tensor: object) -> int | None:
    """The first of the ranks that together hold a tensor; None for one that is not sharded.

    A mesh may have a part of the ranks, as under tensor parallelism with replicas: then other ranks hold copies of the tensor.
    """
    held: Any = tensor
    return int(held.device_mesh.mesh.min()) if is_sharded(tensor) else None


def whole(tensor: Tensor) -> Tensor:
    """The whole of a sharded tensor: all ranks must ask together. Any other is returned unchanged."""
    held: Any = tensor
    full: Tensor = held.full_tensor() if is_sharded(tensor) else tensor
    return full


def local_part(tensor: Tensor) -> Tensor:
    """What this rank contributes to a sharded tensor (`DTensor`), so that all ranks together have each element once.

    Any other tensor is returned unchanged.
    """
    if not is_sharded(tensor):
        return tensor
    held: Any = tensor
    if any(placement.is_partial() for placement in held.placements):
        from torch.distributed.tensor import Replicate  # loaded where there are such tensors

        held = held.redistribute(placements=[Replicate() if p.is_partial() else p for p in held.placements])
    here = held.device_mesh.get_coordinate()
    copies = [here[i] for i, placement in enumerate(held.placements) if placement.is_replicate()]
    local: Tensor = held.to_local()
    return local if not any(copies) else local.new_empty(0)  # of replicas the first counts


def kind_of(tensor: Tensor) -> str:
    """A few words that name the kind of a tensor, for a warning."""
    if is_transformed(tensor):
        return TRANSFORMED
    if not is_plain(tensor):
        return f"tensor of type {type(tensor).__module__}.{type(tensor).__qualname__}"
    kinds = {"meta": tensor.is_meta, "quantized": tensor.is_quantized, "nested": tensor.is_nested}
    named = [name for name, is_it in kinds.items() if is_it] or [str(tensor.layout)]
    return f"{' '.join(named)} tensor of dtype {tensor.dtype}"


def first_line(error: Exception) -> str:
    """The first line of the message of a foreign error, for a warning."""
    return str(error).partition("\n")[0]
