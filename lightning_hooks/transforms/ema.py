"""Moving averages of gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from lightning_hooks.errors import TransformError
from lightning_hooks.foreach import foreach, in_groups
from lightning_hooks.saved_state import read_tensor
from lightning_hooks.transforms._batch import WIDER, over_values
from lightning_hooks.transforms._check import check_factor, check_share
from lightning_hooks.transforms._contract import refuse_sparse
from lightning_hooks.transforms.base import Context, Transform


@dataclass(frozen=True)
class EMA(Transform):
    """Add the slow component of each gradient: `g + weight * m`, with the moving average `m = decay * m + (1 - decay) * g`.

    m starts as the first gradient, so the first result is `(1 + weight) * g`. The average of float16 and bfloat16
    gradients is kept in float32. A NaN or infinite element is returned unchanged and does not enter its average, so an
    overflow under a loss scaler does not persist (in the authors' code it does).

    `optax.ema` starts at 0 and, with `debias`, divides by `1 - decay**t`. Without `debias`, after t gradients the average
    here is larger by `decay**t` times the first gradient. `optax.ema` also returns only the average, not the sum.

    With `when="backward"`, each rank averages over its own micro-batches. On a module's gradients, the average mixes different
    examples at the same position of the batch, which seldom means anything; on activations the transform is refused.

    Source: Lee et al., "Grokfast: Accelerated Grokking by Amplifying Slow Gradients", 2024 (Grokfast-EMA; their alpha is
    `decay`, their lambda `weight`).

    Args:
        decay: the weight of the past in the average; at least 0 and below 1, 0.98 by default.
        weight: the factor of the average; any finite number, 2 by default.

    Raises:
        RuleError: if `decay` or `weight` is not in its range.
        TransformError: when called with a sparse gradient, or a gradient whose shape differs from that of its average.

    Example:
        >>> transform, context = EMA(decay=0.5, weight=2.0), Context(names=["weight"])
        >>> transform([torch.tensor([1.0])], context), transform([torch.tensor([3.0])], context)
        ([tensor([3.])], [tensor([7.])])
        >>> context.state["weight"]
        tensor([2.])
    """

    on_activations: ClassVar[bool] = False

    decay: float = 0.98
    _: KW_ONLY
    weight: float = 2.0

    def __post_init__(self) -> None:
        check_share(self, "decay")
        check_factor(self, "weight")

    def __call__(self, tensors: list[Tensor], context: Context) -> list[Tensor]:
        """Each gradient plus `weight` times its average."""
        refuse_sparse(self, tensors, context, "its stored rows differ from step to step")
        names = [context.name_of(index) for index in range(len(tensors))]

        def change(values: list[Tensor], owned: bool) -> list[Tensor]:
            def add(group: list[Tensor], means: list[Tensor]) -> Sequence[Tensor]:
                sums = foreach("add", group, means, alpha=self.weight, owned=owned)
                return [total.to(value.dtype) for total, value in zip(sums, group, strict=True)]

            return in_groups(values, add, self._advance(values, names, context))

        return over_values(tensors, context, change)

    def check_state(self, state: dict[str, Any], params: Mapping[str, Tensor]) -> None:
        """Check the average of each name for the shape of its parameter. It may hold NaN, as the first gradient may."""
        for name, average in state.items():
            param = params.get(name)
            shape, is_complex = (None, None) if param is None else (param.shape, param.is_complex())
            read_tensor(average, f"state[{name!r}]", shape, is_complex=is_complex)

    def _advance(self, values: list[Tensor], names: list[str], context: Context) -> list[Tensor]:
        """Update the averages with these gradients, store them in the state, and return them."""
        grads = [value.detach().to(WIDER.get(value.dtype, value.dtype)) for value in values]
        old = [_average(context.state.get(name), grad, name) for name, grad in zip(names, grads, strict=True)]

        def mix(group: list[Tensor], before: list[Tensor]) -> list[Tensor]:
            # Create new tensors instead of overwriting the old averages, which a checkpoint that is being written may hold.
            mixed = list(foreach("mul", before, self.decay))
            foreach("add", mixed, group, alpha=1 - self.decay, owned=True)
            # If an element of the new average is not finite, there are two cases. If the gradient is not finite, keep the old
            # average. Otherwise the average began with a gradient that was not finite: start again with this gradient.
            return [
                torch.where(new.isfinite(), new, torch.where(grad.isfinite(), grad, kept))
                for new, grad, kept in zip(mixed, group, before, strict=True)
            ]

        averages = in_groups(grads, mix, old)
        context.state.update(zip(names, averages, strict=True))
        return averages


def _average(kept: Tensor | None, grad: Tensor, name: str) -> Tensor:
    if kept is None:
        return grad
    if kept.shape != grad.shape:
        raise TransformError(
            f"EMA keeps an average of shape {tuple(kept.shape)} for '{name}', and its gradient now has shape "
            f"{tuple(grad.shape)}: use it in a rule on params"
        )
    # The average may come from a checkpoint that was loaded to another device.
    return kept.to(grad.device, grad.dtype)
