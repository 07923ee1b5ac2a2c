"""Setting gradients to zero for a range of steps."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from torch import Tensor

from lightning_hooks.errors import RuleError
from lightning_hooks.transforms._batch import over_values
from lightning_hooks.transforms._check import check_count
from lightning_hooks.transforms._contract import unchanged
from lightning_hooks.transforms.base import Context, Transform
from lightning_hooks.transforms.sparsity import Zero


@dataclass(frozen=True)
class Freeze(Transform):
    """Set the gradient to zero before step `until_step`, and from step `from_step` on.

    Only the gradient is zero. The optimizer still steps and can still move the parameter:

    - Weight decay (of SGD, Adam, AdamW, …) acts on every step: put these parameters in a group with `weight_decay=0`.
    - Momentum of earlier steps continues to act: SGD with momentum m moves for about 1 / (1 - m) steps after `from_step`,
      and Adam does the same with its first moment. Before `until_step` there is no momentum, and the parameter stays bit-equal
      (without weight decay).
    - The optimizer's state is updated: Adam counts the steps, and its moments decay towards zero.

    To freeze a parameter for the whole run, set `requires_grad=False` instead, which also saves its backward pass. Refused
    on activations: a zero activation does not freeze anything.

    Source: `optax.freeze`, with a range of steps instead of a mask (the updates become zero there too).

    Args:
        until_step: the step, counted from 0, before which the gradient is zero; None, the default, for step 0.
        from_step: the step, counted from 0, from which the gradient is zero; None, the default, for never.

    Raises:
        RuleError: neither step is given, a step is not an integer of at least 0, or no step would be unfrozen.

    Example:
        >>> import torch
        >>> transform = Freeze(until_step=10)
        >>> transform([torch.ones(2)], Context(step=9)), transform([torch.ones(2)], Context(step=10))
        ([tensor([0., 0.])], [tensor([1., 1.])])
    """

    elementwise: ClassVar[bool] = True
    on_activations: ClassVar[bool] = False

    until_step: int | None = None
    _: KW_ONLY
    from_step: int | None = None

    def __post_init__(self) -> None:
        if self.until_step is None and self.from_step is None:
            raise RuleError("Freeze needs until_step or from_step, got neither; Zero acts on every step")
        for bound in ("until_step", "from_step"):
            if getattr(self, bound) is not None:
                check_count(self, bound)
        if self.until_step is not None and self.from_step is not None and self.from_step <= self.until_step:
            raise RuleError(
                f"Freeze.from_step must be above until_step, got until_step={self.until_step} and from_step={self.from_step}: "
                "no step would be left; Zero acts on every step"
            )

    def frozen_at(self, step: int) -> bool:
        """Whether gradients are zero at a step.

        Args:
            step: the number of the step, from 0.

        Example:
            >>> [Freeze(until_step=2, from_step=4).frozen_at(step) for step in range(6)]
            [True, True, False, False, True, True]
        """
        before = self.until_step is not None and step < self.until_step
        return before or (self.from_step is not None and step >= self.from_step)

    def __call__(self, tensors: list[Tensor], context: Context) -> list[Tensor]:
        """Zeros, or the tensors unchanged."""
        if self.frozen_at(context.step):
            return Zero()(tensors, context)
        return over_values(tensors, context, unchanged)
