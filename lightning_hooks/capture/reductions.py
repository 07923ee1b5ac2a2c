"""Reductions of a captured tensor before it is stored: to a number or a vector for each sample, or none."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from lightning_hooks.errors import RuleError, did_you_mean

Reduction = Callable[[Tensor], Tensor]


def _float(tensor: Tensor) -> Tensor:
    """Convert to at least float32: float16 overflows in a norm, and the mean of integers is not an integer."""
    if tensor.dtype in (torch.float64, torch.complex128):
        return tensor
    return tensor.to(torch.complex64 if tensor.is_complex() else torch.float32)


def _rows(tensor: Tensor) -> Tensor:
    """Reshape to [N, elements of a sample]; a tensor without dimensions is one sample, a vector has one element per sample."""
    shape = tensor.shape or (1,)
    return _float(tensor).reshape(shape[0], math.prod(shape[1:]))


def _mean(tensor: Tensor) -> Tensor:
    return _rows(tensor).mean(1)


def _sum(tensor: Tensor) -> Tensor:
    return _rows(tensor).sum(1)


def _norm(tensor: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(_rows(tensor), dim=1)
    return norms


def _rms(tensor: Tensor) -> Tensor:
    rows = _rows(tensor)
    return _norm(tensor) / math.sqrt(rows.shape[1]) if rows.shape[1] else _missing(rows)


def _std(tensor: Tensor) -> Tensor:
    rows = _rows(tensor)
    return rows.std(1, correction=0) if tensor.numel() else _missing(rows)


def _max(tensor: Tensor) -> Tensor:
    rows = _rows(_real(tensor))
    return rows.amax(1) if rows.shape[1] else _missing(rows)


def _min(tensor: Tensor) -> Tensor:
    rows = _rows(_real(tensor))
    return rows.amin(1) if rows.shape[1] else _missing(rows)


def _abs_max(tensor: Tensor) -> Tensor:
    return _max(_float(tensor).abs())


def _real(tensor: Tensor) -> Tensor:
    return tensor.abs() if tensor.is_complex() else tensor


def _missing(rows: Tensor) -> Tensor:
    """NaN for every sample: samples without elements have no maximum."""
    return torch.full((rows.shape[0],), math.nan, dtype=rows.real.dtype, device=rows.device)


def _channel_mean(tensor: Tensor) -> Tensor:
    return _float(tensor).flatten(2).mean(2) if tensor.dim() > 2 else tensor


def _token_mean(tensor: Tensor) -> Tensor:
    return _float(tensor).flatten(1, -2).mean(1) if tensor.dim() > 2 else tensor


_TABLE: Final[dict[str, Reduction]] = {
    "abs_max": _abs_max,
    "channel_mean": _channel_mean,
    "max": _max,
    "mean": _mean,
    "min": _min,
    "norm": _norm,
    "rms": _rms,
    "std": _std,
    "sum": _sum,
    "token_mean": _token_mean,
}

REDUCTIONS: Final = tuple(_TABLE)


def reduction(name: str | None) -> Reduction:
    """The function behind the name of a reduction.

    The batch is the first dimension, [N, ...]. `mean`, `sum`, `min`, `max`, `abs_max`, `norm` (Euclidean), `rms` and `std`
    (population) reduce all other dimensions and return [N]. For images these are channels, height and width. For sequences
    [N, T, D] they are tokens *and* features, padding included, since a tensor does not show which of its tokens are padding.
    For a sequence model that puts time first, [T, N, D], the result is one number for each time step, over the whole batch.
    Two more reductions keep a vector for each sample: `channel_mean` reduces all dimensions after the second ([N, C, H, W] to
    [N, C]), and `token_mean` all dimensions between the first and the last ([N, T, D] to [N, D]); both leave tensors of at
    most two dimensions unchanged. A tensor without dimensions counts as one sample.

    Reductions are computed in float32, or in float64 for float64. For complex numbers they reduce the magnitudes, except
    `mean`, `sum` and the two vectors. NaN and Inf follow IEEE. Samples without elements give NaN, or 0 for `sum` and `norm`.

    Args:
        name: one of `REDUCTIONS`, or None for the whole tensor.

    Raises:
        RuleError: there is no such reduction.

    Example:
        >>> images = torch.arange(8.0).reshape(2, 1, 2, 2)
        >>> reduction("mean")(images)
        tensor([1.5000, 5.5000])
        >>> reduction("channel_mean")(images).shape
        torch.Size([2, 1])
    """
    if name is None:
        return _whole
    if not isinstance(name, str) or name not in _TABLE:
        raise RuleError(f"no reduction {name!r}{did_you_mean(name, _TABLE)}; there are None, {', '.join(_TABLE)}")
    return _TABLE[name]


def _whole(tensor: Tensor) -> Tensor:
    return tensor
