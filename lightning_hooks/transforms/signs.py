"""The sign of each element, and gradients with reversed sign."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from lightning_hooks.errors import RuleError
from lightning_hooks.rules.reading import as_callable
from lightning_hooks.transforms._batch import over_each
from lightning_hooks.transforms._check import check_factor, is_number
from lightning_hooks.transforms._contract import written
from lightning_hooks.transforms._schedule import Curve, as_points, number_at
from lightning_hooks.transforms.base import Context, Transform
from lightning_hooks.transforms.scaling import times_number


@dataclass(frozen=True)
class Sign(Transform):
    """Replace each element by its sign: -1, 0 or 1; a complex element by `z / |z|`.

    A NaN stays NaN, whereas `torch.sign` returns 0. On activations its gradient is 0 everywhere.

    Source: `optax.scale_by_sign`; Bernstein et al., "signSGD: Compressed Optimisation for Non-Convex Problems", 2018.

    Example:
        >>> Sign()([torch.tensor([-0.1, 0.0, 7.0, float("nan")])], Context())
        [tensor([-1.,  0.,  1., nan])]
    """

    elementwise: ClassVar[bool] = True

    def __call__(self, tensors: list[Tensor], context: Context) -> list[Tensor]:
        """The signs of each tensor."""
        return over_each(tensors, context, _sign)


@dataclass(frozen=True)
class ReverseGradient(Transform):
    """Multiply each gradient by `-weight`, so that the layers before this module are trained against the layers after it.

    Between a feature extractor and a domain classifier (a rule on the `output_grad` of the extractor's last module that
    feeds the classifier alone, or on the `input_grad` of the classifier) this is domain-adversarial training. It is
    refused on activations: a factor in the forward pass would change the input of the classifier.

    Source: Ganin and Lempitsky, "Unsupervised Domain Adaptation by Backpropagation", 2015. Their weight rises from 0 to 1
    as `2 / (1 + exp(-10 p)) - 1`, where p is the fraction of training that is complete.

    Args:
        weight: a finite number, 1 by default; or, to change it with the step, pairs `(step, weight)` as in
            `ScaleBySchedule.points`, a function from the step number to the weight, or its import path.

    Raises:
        RuleError: the weight is invalid.
        TransformError: when the callable gives anything but a finite number.

    Example:
        >>> ReverseGradient(0.5)([torch.tensor([4.0])], Context())
        [tensor([-2.])]
        >>> ReverseGradient([(0, 0.0), (100, 1.0)])([torch.tensor([4.0])], Context(step=50))
        [tensor([-2.])]
    """

    on_activations: ClassVar[bool] = False

    weight: float | Sequence[Sequence[Any]] | str | Callable[[int], float] = 1.0
    _schedule: Callable[[int], float] | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        given: Any = self.weight
        schedule: Callable[[int], float] | None = None
        if is_number(given):
            check_factor(self, "weight")
        elif isinstance(given, Sequence) and not isinstance(given, str):
            points = as_points(given, "ReverseGradient.weight")
            # Setting an attribute of a frozen dataclass raises, so call the method of `object`.
            object.__setattr__(self, "weight", points)
            schedule = Curve(points)
        elif isinstance(given, str) or callable(given):
            schedule = as_callable(given, "ReverseGradient.weight", "step")
        else:
            raise RuleError(
                "ReverseGradient.weight must be a finite number, a list of pairs (step, weight), a callable or an import "
                f"path, got {given!r}"
            )
        object.__setattr__(self, "_schedule", schedule)

    def weight_at(self, step: int) -> float:
        """The weight at a step.

        Args:
            step: the number of the step, from 0.

        Raises:
            TransformError: if the callable gives anything but a finite number.

        Example:
            >>> ReverseGradient([(0, 0.0), (100, 1.0)]).weight_at(10)
            0.1
        """
        if self._schedule is None:
            return float(self.weight)  # type: ignore[arg-type]
        return number_at(self._schedule, step, "ReverseGradient.weight")

    def __call__(self, tensors: list[Tensor], context: Context) -> list[Tensor]:
        """Each gradient times `-weight`."""
        return times_number(tensors, context, -self.weight_at(context.step))


def _sign(value: Tensor, owned: bool) -> Tensor:
    # Keep NaN, which sgn() turns into 0: hiding a NaN would hide an error. Torch has no batched form that keeps NaN.
    sign = torch.where(value.isnan(), value, value.sgn())
    return written(value, sign, owned)
