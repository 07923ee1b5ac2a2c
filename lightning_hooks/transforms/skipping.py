"""Skipping a step of the optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from lightning_hooks.errors import RuleError, TransformError
from lightning_hooks.saved_state import read_count, refuse_other_keys
from lightning_hooks.transforms._check import check_count, check_finite, check_flag
from lightning_hooks.transforms._norms import dense_values, norms, stack_scalars, total_norm
from lightning_hooks.transforms.base import Context, Transform


@dataclass(frozen=True)
class SkipStep(Transform):
    """Skip the optimizer's step if a gradient is not finite, or if the norm of all gradients is too large.

    Parameters and optimizer state stay unchanged; learning-rate schedulers and the step count advance. The tensors are
    returned unchanged. The decision is made over all tensors together, and the host waits for the device once per step.
    With several ranks, all ranks skip the step if one of them would skip it. Each rank counts consecutive skips itself; the
    counts are equal where gradients are averaged over ranks.

    Source: `optax.apply_if_finite`, with one intended difference: after `max_consecutive` consecutive skips optax
    accepts the next update even if it is not finite, which leaves NaN in the parameters. Here that step raises an error.

    Args:
        if_nonfinite: skip if an element is NaN or infinite; True by default.
        if_norm_above: skip if the norm of all tensors, taken as one vector, is above this limit; None, the default, for no
            limit. A norm of NaN is not above the limit.
        max_consecutive: the maximum number of consecutive skips; None, the default, for no limit.

    Raises:
        RuleError: both conditions are turned off, or a field is not in its range.
        TransformError: a step would be skipped after `max_consecutive` consecutive skips.

    Example:
        >>> context = Context()
        >>> SkipStep()([torch.tensor([1.0, float("nan")])], context)
        [tensor([1., nan])]
        >>> context.skip_reason
        'a gradient is not finite'
    """

    needs_all: ClassVar[bool] = True
    needs_step: ClassVar[bool] = True
    on_activations: ClassVar[bool] = False

    if_nonfinite: bool = True
    _: KW_ONLY
    if_norm_above: float | None = None
    max_consecutive: int | None = None

    def __post_init__(self) -> None:
        check_flag(self, "if_nonfinite")
        if self.if_norm_above is not None:
            check_finite(self, "if_norm_above", above=0)
        if self.max_consecutive is not None:
            check_count(self, "max_consecutive")
        if not self.if_nonfinite and self.if_norm_above is None:
            raise RuleError("SkipStep needs if_nonfinite=True or if_norm_above, got neither")

    def __call__(self, tensors: list[Tensor], context: Context) -> list[Tensor]:
        """The tensors unchanged, after the decision whether to skip the step."""
        if not tensors:
            return tensors if context.owned else []
        code = int(self._code(dense_values(tensors, context)))
        if code == 0:
            context.state["consecutive"] = 0
            return list(tensors)
        reason = "a gradient is not finite" if code == 2 else f"the norm of the gradients is above {self.if_norm_above:g}"
        skipped = context.state.get("consecutive", 0) + 1
        context.state["consecutive"] = skipped
        if self.max_consecutive is not None and skipped > self.max_consecutive:
            raise TransformError(
                f"SkipStep would skip step {context.step}, number {skipped} in a row and more than max_consecutive="
                f"{self.max_consecutive}: {reason}. Lower the learning rate, or look for the first step that was skipped"
            )
        context.skip_step(reason)
        return list(tensors)

    def check_state(self, state: dict[str, Any], params: Mapping[str, Tensor]) -> None:
        """Check the number of consecutive skips; before the first step the state is empty."""
        refuse_other_keys(state, "consecutive")
        if state:
            read_count(state["consecutive"], "state['consecutive']")

    def _code(self, values: list[Tensor]) -> Tensor:
        """The decision as a scalar on the device: 2 if an element is not finite, 1 if the norm is too large, otherwise 0."""
        code = torch.zeros((), dtype=torch.int32, device=values[0].device)
        if self.if_norm_above is not None:
            code = torch.where(total_norm(values) > self.if_norm_above, 1, code)
        if self.if_nonfinite:
            # Test the greatest magnitude, because a sum of squares could overflow although all elements are finite. The
            # magnitude of a complex element could overflow too, so take its real and its imaginary part.
            real_values = [torch.view_as_real(value.resolve_conj()) if value.is_complex() else value for value in values]
            code = torch.where(stack_scalars(norms(real_values, torch.inf)).isfinite().all(), code, 2)
        return code.to(torch.int32)
