"""Setting elements to zero: all elements, some by index, some at random, or all but the largest."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from fractions import Fraction
from typing import ClassVar

import torch
from torch import Tensor

from lightning_hooks.errors import RuleError, TransformError, shown
from lightning_hooks.foreach import foreach, in_groups
from lightning_hooks.transforms._batch import over_each, over_values
from lightning_hooks.transforms._check import check_count, check_share, is_number, is_whole, whole_numbers
from lightning_hooks.transforms._contract import zeroed
from lightning_hooks.transforms.base import Context, Transform
from lightning_hooks.transforms.scaling import Scale


@dataclass(frozen=True)
class Zero(Transform):
    """Set elements to zero, including NaN and infinity: all of them, or the entries `index` of one dimension.

    A parameter with a zero gradient is not frozen: weight decay and momentum still move it (see `Freeze`).

    Source: `optax.set_to_zero`, with the choice of entries added.

    Args:
        index: the entries to set to zero along `dim`: an integer or a list; negative ones count from the end. None, the
            default, for the whole tensor.
        dim: the dimension of `index`; 1 by default, the channels of an activation or of its gradient. The output channels of
            a weight are dimension 0.

    Raises:
        RuleError: `index` or `dim` is not an integer or a list of integers.
        TransformError: when called with a tensor that has no such dimension or entry.

    Example:
        >>> Zero()([torch.tensor([1.0, float("nan")])], Context())
        [tensor([0., 0.])]
        >>> Zero(index=[0, -1])([torch.ones(2, 4)], Context())
        [tensor([[0., 1., 1., 0.],
                [0., 1., 1., 0.]])]
    """

    index: int | Sequence[int] | None = None
    _: KW_ONLY
    dim: int = 1

    def __post_init__(self) -> None:
        if self.index is not None:
            object.__setattr__(self, "index", whole_numbers(self, "index"))
        if not is_whole(self.dim):
            raise RuleError(f"Zero.dim must be an integer, got {shown(self.dim)}")

    def __call__(self, tensors: list[Tensor], context: Context) -> list[Tensor]:
        """Each tensor with the chosen elements set to zero."""
        if self.index is None:
            return over_values(tensors, context, _all_zero)
        positions = [self._dim_and_runs(tensor, context.name_of(i)) for i, tensor in enumerate(tensors)]
        # In a sparse tensor, the indices say which stored values to set to zero. over_each() coalesces the tensor again, which
        # gives the values in the same order.
        indices = [tensor.coalesce().indices() if tensor.is_sparse else None for tensor in tensors]
        return over_each(tensors, context, _some_zero, positions, indices)

    def _dim_and_runs(self, tensor: Tensor, name: str) -> tuple[int, list[tuple[int, int]]]:
        """The dimension counted from the front, and the entries to set to zero, as runs (first, length)."""
        assert isinstance(self.index, tuple)
        shape = tuple(tensor.shape)
        if not -len(shape) <= self.dim < len(shape):
            raise TransformError(self._no_dimension(name, shape))
        size = shape[self.dim]
        for entry in self.index:
            if not -size <= entry < size:
                raise TransformError(
                    f"Zero.index {entry} is out of range for '{name}': its shape is {shape}, so dimension {self.dim} "
                    f"has the entries 0 to {size - 1}"
                    if size
                    else f"Zero.index {entry} is out of range for '{name}': its shape is {shape}, and dimension {self.dim} "
                    "has no entries"
                )
        return self.dim % len(shape), list(_runs(sorted({entry % size for entry in self.index})))

    def _no_dimension(self, name: str, shape: tuple[int, ...]) -> str:
        """The message for a tensor without dimension `dim`; it says if `dim` is the default, which the user did not choose."""
        assert isinstance(self.index, tuple)
        selects = f"Zero.index {list(self.index)} selects entries of dimension {self.dim}{' (the default)' * (self.dim == 1)}"
        if not shape:
            return f"{selects}, but '{name}' has no dimensions: exclude it from the rule"
        has = "one dimension" if len(shape) == 1 else f"{len(shape)} dimensions"
        return f"{selects}, but '{name}' of shape {shape} has {has}: give dim=0 for the first, or exclude it from the rule"


@dataclass(frozen=True)
class Dropout(Transform):
    """Set each element to zero with probability `p` and divide the others by `1 - p`, which keeps the expected value.

    Elements that a sparse tensor does not store stay zero. A dropped NaN or infinity becomes zero.

    Source: Srivastava et al., "Dropout: a simple way to prevent neural networks from overfitting", 2014, in the inverted
    form of `torch.nn.functional.dropout`; on gradients: Tseng et al., "Regularizing Meta-Learning via Gradient Dropout",
    2020.

    Args:
        p: the probability that an element becomes zero; at least 0 and below 1.

    Raises:
        RuleError: if `p` is not in its range.

    Example:
        >>> (result,) = Dropout(0.5)([torch.ones(1000)], Context(seed=1))
        >>> result.unique().tolist(), round(result.mean().item(), 1)
        ([0.0, 2.0], 1.0)
    """

    random: ClassVar[bool] = True

    p: float

    def __post_init__(self) -> None:
        check_share(self, "p")

    def __call__(self, tensors: list[Tensor], context: Context) -> list[Tensor]:
        """Each tensor with dropped and scaled elements, drawn in the order of the tensors."""

        def drop(value: Tensor, owned: bool) -> Tensor:
            dropped = torch.empty_like(value, dtype=torch.bool, requires_grad=False)
            return zeroed(value, dropped.bernoulli_(self.p, generator=context.generator_for(value.device)), owned)

        # Let Scale overwrite the results, which are the owned tensors or new ones.
        kept = over_each(tensors, context, drop)
        return Scale(1 / (1 - self.p))(kept, Context(names=context.names, owned=True))


@dataclass(frozen=True)
class TopK(Transform):
    """Keep the elements of largest magnitude of each tensor, and set all others to zero.

    The number of kept elements is exact; which of several equal magnitudes are kept depends on torch. A NaN counts as the
    largest. Elements that a sparse tensor does not store count as zero.

    Source: Aji and Heafield, "Sparse communication for distributed gradient descent", 2017 (without their residual: dropped
    elements are lost).

    Args:
        fraction: the fraction of the elements of a tensor to keep, above 0 and at most 1; the number is rounded up.
        k: the number of elements to keep, at least 1; a smaller tensor stays unchanged. Give exactly one of the two.

    Raises:
        RuleError: if neither or both are given, or one is not in its range.

    Example:
        >>> TopK(k=2)([torch.tensor([0.1, -3.0, 2.0, 0.5])], Context())
        [tensor([ 0., -3.,  2.,  0.])]
    """

    fraction: float | None = None
    _: KW_ONLY
    k: int | None = None

    def __post_init__(self) -> None:
        if (self.fraction is None) == (self.k is None):
            raise RuleError(f"TopK needs exactly one of fraction and k, got {'neither' if self.k is None else 'both'}")
        if self.k is not None:
            check_count(self, "k", at_least=1)
        elif not is_number(self.fraction) or not 0 < self.fraction <= 1:  # type: ignore[operator]
            raise RuleError(f"TopK.fraction must be a number above 0 and at most 1, got {shown(self.fraction)}")

    def __call__(self, tensors: list[Tensor], context: Context) -> list[Tensor]:
        """Each tensor with zeros in place of its smaller elements."""
        return over_each(tensors, context, _largest, [self._number_to_keep(tensor.numel()) for tensor in tensors])

    def _number_to_keep(self, numel: int) -> int:
        if self.k is not None:
            return self.k
        # Multiply by the decimal number as the user wrote it: 0.07 of 100 elements are 7, but the float 0.07 * 100 is above 7.
        return math.ceil(Fraction(repr(float(self.fraction or 0))) * numel)


def _all_zero(values: list[Tensor], owned: bool) -> list[Tensor]:
    def run(group: list[Tensor]) -> Sequence[Tensor]:
        if owned:
            return foreach("zero", group, owned=True)
        return [_zeros(value) for value in group]

    return in_groups(values, run)


def _zeros(value: Tensor) -> Tensor:
    if not (value.requires_grad and torch.is_grad_enabled()):
        return torch.zeros_like(value)
    # Keep an activation in the graph, so that the layers before it receive a zero gradient: without a gradient, DDP would
    # report their parameters as unused. A product with 0 would also stay in the graph, but keep a NaN.
    return value.masked_fill(torch.ones((), dtype=torch.bool, device=value.device), 0)


def _some_zero(value: Tensor, owned: bool, position: tuple[int, list[tuple[int, int]]], indices: Tensor | None) -> Tensor:
    """Set runs of entries of one dimension to zero; `indices` are those of a sparse tensor, None for a dense tensor."""
    dim, runs = position
    if indices is not None and dim < indices.shape[0]:
        rows = indices[dim]
        is_selected = torch.zeros_like(rows, dtype=torch.bool)
        for start, length in runs:
            is_selected |= (rows >= start) & (rows < start + length)
        is_selected = is_selected.reshape(-1, *[1] * (value.dim() - 1))
        return zeroed(value, is_selected, owned)
    # The values of a sparse tensor have the shape [entries, *dense dimensions].
    value_dim = dim if indices is None else dim - indices.shape[0] + 1
    result = value if owned else value.clone()
    # Set runs to zero instead of indexing by a tensor, which every call would have to copy to the device.
    for start, length in runs:
        result.narrow(value_dim, start, length).zero_()
    return result


def _runs(entries: list[int]) -> Iterator[tuple[int, int]]:
    """Sorted integers as (first, length) of each run of consecutive integers."""
    start = 0
    for end in range(1, len(entries) + 1):
        if end == len(entries) or entries[end] != entries[end - 1] + 1:
            yield entries[start], end - start
            start = end


def _largest(value: Tensor, owned: bool, number: int) -> Tensor:
    if number >= value.numel():
        return value if owned else value.clone()
    magnitudes = value.detach().abs().reshape(-1)
    positions = magnitudes.topk(number, sorted=False).indices
    smaller = torch.ones_like(magnitudes, dtype=torch.bool).scatter_(0, positions, False).reshape(value.shape)
    return zeroed(value, smaller, owned)
