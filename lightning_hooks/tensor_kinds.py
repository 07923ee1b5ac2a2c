"""The kinds of tensors, and the elements that are measured of a sparse, complex, sharded or subclassed tensor.

Inside `without_subclass()`, operations treat a tensor of a subclass as a plain tensor: the subclass may refuse operations.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from typing import Any, Final

import torch
from torch import Tensor

from lightning_hooks.private import private

TRANSFORMED: Final = "tensor inside a transform of torch.func (grad, vmap, jvp, …) or a batched backward"
"""The name, in warnings, of the tensors that torch passes to a function while it transforms the function."""


class _RefusingTensor(Tensor):
    @classmethod
    def __torch_function__(cls, *args: Any, **kwargs: Any) -> Any:
        raise TypeError


def _find_without_subclass() -> Any:
    with torch._C.DisableTorchFunctionSubclass():
        torch.empty(0, device="cpu").as_subclass(_RefusingTensor).dim()
    return torch._C.DisableTorchFunctionSubclass


without_subclass: Any = private(
    "torch._C.DisableTorchFunctionSubclass",
    _find_without_subclass,
    nullcontext,
    "errors of a subclass of Tensor end the training",
)


_PLAIN: Final = (Tensor, torch.nn.Parameter)


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor is one of torch's own types, and not a subclass, which may lack operations."""
    return type(tensor) in _PLAIN


def is_measured(tensor: Tensor) -> bool:
    """Whether a tensor of a module is measured: floating-point and complex tensors are, integers and booleans are not."""
    if type(tensor) is Tensor or torch.compiler.is_compiling():
        return tensor.is_floating_point() or tensor.is_complex()
    # A tensor subclass may raise even in these methods, so call those of `Tensor`.
    with without_subclass():
        return tensor.is_floating_point() or tensor.is_complex()


def is_dense(tensor: Tensor) -> bool:
    """Whether a tensor is one of torch's own types whose elements are all stored, as most operations require."""
    if type(tensor) not in _PLAIN or tensor.layout is not torch.strided:
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
    """Whether the elements of a strided tensor are in memory.

    Tensors inside a transform of `torch.func`, and the zero tensors that autograd only implies, are not in memory.
    """
    try:
        return tensor.data_ptr() != 0 or not tensor.numel()
    except RuntimeError:
        return False


def plain_numbers(tensor: Tensor) -> Tensor:
    """The values of a small tensor as a tensor of torch's own type; without memory of its own, they pass through a list."""
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
    # A tensor that is created while a transform is active is transformed, too, so an empty one tells whether one is active.
    return is_transformed(tensor) or is_transformed(torch.empty(0, device="cpu"))


def elements(tensor: Tensor) -> tuple[Tensor, int] | None:
    """The dense real tensor that holds the elements to measure, and the number of implied zeros that it does not hold.

    A complex number counts as two elements, its real and imaginary part, so that the norm is the usual one. For a sparse
    tensor, the stored values are measured after duplicates are summed; all other elements are zeros. For a nested tensor, the
    elements of its components are measured, without padding.

    Returns:
        The elements and the number of implied zeros, or None for a kind that cannot be measured.

    Example:
        >>> dense, zeros = elements(torch.eye(3).to_sparse())
        >>> dense.tolist(), zeros
        ([1.0, 1.0, 1.0], 6)
    """
    tensor, zeros = local_part(tensor.detach()), 0
    if not is_dense(tensor):
        if tensor.is_meta or tensor.is_quantized:
            return None
        tensor, zeros = _stored(tensor)
    if tensor.is_complex():
        tensor, zeros = torch.view_as_real(tensor.resolve_conj()), 2 * zeros
    return tensor.resolve_neg(), zeros


def _stored(tensor: Tensor) -> tuple[Tensor, int]:
    """The elements that a sparse or nested tensor stores, and the number of the others; any other tensor itself."""
    if tensor.is_nested:
        # The values of a jagged tensor that is a view may hold more than its components; contiguous() drops the surplus.
        return tensor.contiguous().values(), 0
    if tensor.layout is torch.sparse_coo:
        values = tensor.coalesce().values()
        return values, tensor.numel() - values.numel()
    if tensor.layout in (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc):
        values = tensor.values()
        return values, tensor.numel() - values.numel()
    return (tensor.to_dense() if tensor.is_mkldnn else tensor), 0


def is_sharded(tensor: object) -> bool:
    """Whether a tensor is a `DTensor`."""
    if type(tensor) in _PLAIN:
        return False
    # Before the module is imported, no DTensor can exist. Do not import it here: that is slow.
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def first_holder(tensor: object) -> int | None:
    """The lowest rank in the device mesh of a sharded tensor; None if the tensor is not sharded.

    A mesh may contain only some of the ranks, as in tensor parallelism with replicas: other meshes then hold copies of the
    tensor.
    """
    dtensor: Any = tensor
    return int(dtensor.device_mesh.mesh.min()) if is_sharded(tensor) else None


def whole(tensor: Tensor) -> Tensor:
    """Gather a sharded tensor, for which all ranks must call together; any other tensor is returned unchanged."""
    dtensor: Any = tensor
    full: Tensor = dtensor.full_tensor() if is_sharded(tensor) else tensor
    return full


def local_part(tensor: Tensor) -> Tensor:
    """The elements of a sharded tensor (`DTensor`) that this rank counts; over all ranks each element is counted once.

    Any other tensor is returned unchanged.
    """
    if not is_sharded(tensor):
        return tensor
    dtensor: Any = tensor
    if any(placement.is_partial() for placement in dtensor.placements):
        # Import the module only if a DTensor exists: the import is slow.
        from torch.distributed.tensor import Replicate

        dtensor = dtensor.redistribute(placements=[Replicate() if p.is_partial() else p for p in dtensor.placements])
    coordinate = dtensor.device_mesh.get_coordinate()
    replica_indices = [coordinate[i] for i, placement in enumerate(dtensor.placements) if placement.is_replicate()]
    local: Tensor = dtensor.to_local()
    # Only the first replica counts its elements; every other replica contributes an empty tensor.
    return local if not any(replica_indices) else local.new_empty(0)


def held_part(tensor: Tensor) -> Tensor:
    """The elements of a sharded tensor (`DTensor`) that this rank holds, without waiting for other ranks.

    They may be a shard, a copy, or one summand of a sum that the ranks have not formed yet. Any other tensor is returned
    unchanged.
    """
    dtensor: Any = tensor
    held: Tensor = dtensor.to_local() if is_sharded(tensor) else tensor
    return held


def kind_of(tensor: Tensor) -> str:
    """A few words that name the kind of a tensor, for a warning."""
    if is_transformed(tensor):
        return TRANSFORMED
    if not is_plain(tensor):
        return f"tensor of type {type(tensor).__module__}.{type(tensor).__qualname__}"
    kinds = {"meta": tensor.is_meta, "quantized": tensor.is_quantized, "nested": tensor.is_nested}
    names = [name for name, applies in kinds.items() if applies] or [str(tensor.layout)]
    return f"{' '.join(names)} tensor of dtype {tensor.dtype}"


def first_line(error: Exception) -> str:
    """The first line of the message of an error from another library, for a warning."""
    return str(error).partition("\n")[0]


def version_of(tensor: Tensor) -> int:
    """The number of in-place changes so far; 0 in inference mode, which does not count them."""
    return 0 if tensor.is_inference() else _versions()(tensor)


@cache
def _versions() -> Callable[[Tensor], int]:
    def find() -> Callable[[Tensor], int]:
        with torch.inference_mode(False):
            tensor = torch.zeros(1, device="cpu")
        before = tensor._version
        if tensor.add_(1)._version <= before:
            raise RuntimeError("it does something else in this torch")
        return lambda tensor: tensor._version

    public: Callable[[Tensor], int] = _no_version
    return private("Tensor._version", find, public, "a change of a tensor in place is not refused")


def _no_version(tensor: Tensor) -> int:
    return 0


_BITS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors hold the same elements bit for bit; by value, NaN would differ from itself and -0.0 equal 0.0.

    Elements whose bits cannot be read, as of a subclass that lacks operations, are compared by value.

    Example:
        >>> nan = torch.tensor(float("nan"))
        >>> same_bits(nan, nan.clone()), same_bits(torch.tensor(0.0), torch.tensor(-0.0))
        (True, False)
    """
    one, other = one.detach(), other.detach()
    if one.shape != other.shape or one.dtype != other.dtype or one.layout != other.layout or one.device != other.device:
        return False
    try:
        with without_subclass():
            return all(_same_bits_of(a, b) for a, b in zip(_parts(one), _parts(other), strict=True))
    # A layout or a kind of tensor of its own may lack any of these operations.
    except (RuntimeError, TypeError, ValueError):
        return torch.equal(one, other)


def _parts(tensor: Tensor) -> list[Tensor]:
    """The dense tensors in which a tensor keeps its elements."""
    if tensor.is_meta:
        raise ValueError("a tensor on the meta device has no elements")
    if tensor.is_quantized:
        return [tensor.int_repr()]
    if tensor.is_nested:
        return list(tensor.unbind())
    if tensor.layout is torch.sparse_coo:
        tensor = tensor.coalesce()
        return [tensor.indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return [torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor.resolve_neg()]


def _same_bits_of(one: Tensor, other: Tensor) -> bool:
    kind = _BITS[one.element_size()]
    return one.shape == other.shape and torch.equal(one.view(kind), other.view(kind))
