"""What is measured of a tensor that is not a plain dense real one."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor


def elements(tensor: Tensor) -> tuple[Tensor, int] | None:
    """The dense real tensor that holds the elements to measure, and how many zeros it leaves out.

    Complex numbers count as two elements, their real and imaginary parts, so that the norm is the usual one. Of a sparse
    tensor the stored values are measured, duplicates added up first; the rest are zeros.

    Args:
        tensor: any tensor.

    Returns:
        The elements and the number of implied zeros, or None for a kind that cannot be measured.

    Example:
        >>> dense, zeros = elements(torch.eye(3).to_sparse())
        >>> dense.tolist(), zeros
        ([1.0, 1.0, 1.0], 6)
    """
    tensor = local_part(tensor.detach())
    if tensor.is_meta or tensor.is_quantized or tensor.is_nested or tensor.is_mkldnn:
        return None
    zeros = 0
    if tensor.layout is torch.sparse_coo:
        values = tensor.coalesce().values()
        zeros = tensor.numel() - values.numel()
        tensor = values
    elif tensor.layout in (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc):
        values = tensor.values()
        zeros = tensor.numel() - values.numel()
        tensor = values
    if tensor.is_complex():
        tensor, zeros = torch.view_as_real(tensor.resolve_conj()), 2 * zeros
    return tensor, zeros


def local_part(tensor: Tensor) -> Tensor:
    """What this rank contributes to a sharded tensor (`DTensor`), so that all ranks together have each element once.

    Args:
        tensor: any; one that is not sharded is returned as it is.
    """
    module = sys.modules.get("torch.distributed.tensor")  # not loaded, there can be none; loading it takes a while
    if module is None or not isinstance(tensor, module.DTensor):
        return tensor
    held: Any = tensor
    if any(placement.is_partial() for placement in held.placements):
        held = held.redistribute(placements=[module.Replicate() if p.is_partial() else p for p in held.placements])
    here = held.device_mesh.get_coordinate()
    copies = [here[i] for i, placement in enumerate(held.placements) if placement.is_replicate()]
    local: Tensor = held.to_local()
    return local if not any(copies) else local.new_empty(0)  # of copies the first counts


def kind_of(tensor: Tensor) -> str:
    """A few words that name the kind of a tensor, for a warning."""
    kinds = {"meta": tensor.is_meta, "quantized": tensor.is_quantized, "nested": tensor.is_nested}
    named = [name for name, is_it in kinds.items() if is_it] or [str(tensor.layout)]
    return f"{' '.join(named)} tensor of dtype {tensor.dtype}"
