"""Changes of gradients that depend on their mean or on the weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lightning_hooks.errors import TransformError
from lightning_hooks.foreach import foreach, in_groups
from lightning_hooks.transforms._batch import WIDER, over_each, over_values
from lightning_hooks.transforms._check import check_factor, check_finite
from lightning_hooks.transforms._contract import params_of, refuse_sparse, written, zeroed
from lightning_hooks.transforms.base import Context, Transform


@dataclass(frozen=True)
class Centralize(Transform):
    """Subtract from each slice along the first dimension its mean: `x - mean(x over all dimensions but the first)`.

    Tensors of fewer than two dimensions stay unchanged. The slices of a weight are its output channels; those of an
    activation are the examples of the batch. The gradient of an embedding with `sparse=True` is centralised row by row.

    Source: Yong et al., "Gradient Centralization: A New Optimization Technique for Deep Neural Networks", 2020, equation 1;
    same results as `optax.centralize`.

    Raises:
        TransformError: when called with a tensor that is sparse in more than its first dimension.

    Example:
        >>> Centralize()([torch.tensor([[1.0, 2.0, 3.0], [4.0, 4.0, 7.0]]), torch.tensor([5.0])], Context())
        [tensor([[-1.,  0.,  1.],
                [-1., -1.,  2.]]), tensor([5.])]
    """

    def __call__(self, tensors: list[Tensor], context: Context) -> list[Tensor]:
        """Each tensor minus the means of its slices."""
        for index, tensor in enumerate(tensors):
            if tensor.is_sparse and tensor.sparse_dim() > 1:
                raise TransformError(
                    f"Centralize would fill '{context.name_of(index)}', which is sparse in {tensor.sparse_dim()} dimensions: "
                    "exclude it from the rule"
                )
        return over_each(tensors, context, _centred, [tensor.dim() < 2 for tensor in tensors])


@dataclass(frozen=True)
class OrthoGrad(Transform):
    """Remove from each gradient its component along the weights, and restore its norm.

    With the parameter w and its gradient g as vectors: `h = g - (w·g) / (w·w + eps) * w`, and the result is
    `h * norm(g) / (norm(h) + eps)`. A zero parameter keeps its gradient.

    Where g is parallel to w, h is only rounding error, and the authors' code scales that error up to the norm of g. Here
    the gradient becomes 0 if the norm of h is below `4 * finfo.eps * norm(g)`, and always for a parameter with one element.

    Source: Prieto et al., "Grokking at the Edge of Numerical Stability", 2025, and the authors' code (value of `eps`).

    Args:
        eps: added to the denominators, so that nothing is divided by 0; at least 0, 1e-30 by default.

    Raises:
        RuleError: if `eps` is not in its range.
        TransformError: when called with a sparse gradient, since the result is dense, or without the parameters.

    Example:
        >>> weight, grad = torch.tensor([2.0, 0.0]), torch.tensor([3.0, 4.0])
        >>> OrthoGrad()([grad], Context(params=[weight]))
        [tensor([0., 5.])]
    """

    needs_params: ClassVar[bool] = True
    on_activations: ClassVar[bool] = False

    eps: float = 1e-30

    def __post_init__(self) -> None:
        check_finite(self, "eps", at_least=0)

    def __call__(self, tensors: list[Tensor], context: Context) -> list[Tensor]:
        """Each gradient, orthogonal to its parameter."""
        refuse_sparse(self, tensors, context, "without its component along the weights it is dense")
        return over_each(tensors, context, self._orthogonal, params_of(self, tensors, context))

    def _orthogonal(self, value: Tensor, owned: bool, param: Tensor) -> Tensor:
        wide = WIDER.get(value.dtype, value.dtype)
        grad, weight = value.to(wide).reshape(-1), param.to(wide).reshape(-1)
        if grad.numel() == 1:
            return written(value, torch.where(weight == 0, grad, torch.zeros_like(grad)).reshape(value.shape), owned)
        # For complex vectors, vdot conjugates its first argument, as a projection needs; for real vectors it is the dot
        # product.
        along = torch.vdot(weight, grad) / (torch.vdot(weight, weight) + self.eps)
        across = grad - along * weight
        norm, norm_across = torch.linalg.vector_norm(grad), torch.linalg.vector_norm(across)
        factor = norm / (norm_across + self.eps)
        # If only rounding error remains, return zeros: by a mask, because an `if` would wait for the device. The comparison is
        # False for a NaN, which stays.
        is_rounding = norm_across <= 4 * torch.finfo(wide).eps * norm
        return written(value, (across * factor).masked_fill(is_rounding, 0).reshape(value.shape), owned)


@dataclass(frozen=True)
class AddDecayedWeights(Transform):
    """Add the parameter, times a constant, to its gradient: `g + weight_decay * p`.

    With SGD this is weight decay. Before an optimizer that normalises, such as Adam, it is an L2 penalty. It is not the
    decoupled weight decay of AdamW, which acts after the normalisation; use AdamW for that.

    Source: Krogh and Hertz, "A Simple Weight Decay Can Improve Generalization", 1991; same results as
    `optax.add_decayed_weights`, whose mask is the `params=` of the rule here.

    Args:
        weight_decay: the constant; at least 0.

    Raises:
        RuleError: if `weight_decay` is not in its range.
        TransformError: when called with a sparse gradient, since the result is dense, or without the parameters.

    Example:
        >>> AddDecayedWeights(0.5)([torch.tensor([1.0, 1.0])], Context(params=[torch.tensor([2.0, -2.0])]))
        [tensor([2., 0.])]
    """

    elementwise: ClassVar[bool] = True
    needs_params: ClassVar[bool] = True
    on_activations: ClassVar[bool] = False

    weight_decay: float

    def __post_init__(self) -> None:
        check_factor(self, "weight_decay", at_least=0)

    def __call__(self, tensors: list[Tensor], context: Context) -> list[Tensor]:
        """Each gradient plus `weight_decay` times its parameter."""
        refuse_sparse(self, tensors, context, "with the parameter added it is dense")
        params = params_of(self, tensors, context)

        def change(values: list[Tensor], owned: bool) -> list[Tensor]:
            return in_groups(values, lambda group, group_params: self._sums(group, group_params, owned), params)

        return over_values(tensors, context, change)

    def _sums(self, group: list[Tensor], params: list[Tensor], owned: bool) -> Sequence[Tensor]:
        dtype = group[0].dtype
        if dtype in WIDER or dtype != params[0].dtype:
            # Calculate in the wider dtype and round once: on the CPU, torch would round `weight_decay` to the dtype first.
            wide = WIDER.get(dtype, dtype)
            return [
                written(grad, torch.add(grad.to(wide), param.to(wide), alpha=self.weight_decay), owned)
                for grad, param in zip(group, params, strict=True)
            ]
        return foreach("add", group, params, alpha=self.weight_decay, owned=owned)


@dataclass(frozen=True)
class KeepNonnegative(Transform):
    """Set gradients to zero that would decrease a parameter that is not above 0: 0 where `p <= 0` and `g > 0`, else `g`.

    A descent step goes against the gradient, so with plain SGD such a parameter stays constant or increases. A parameter
    above 0 can fall below 0 in one step, by less than `lr * g`, and then decreases no further. Momentum, Adam's moments
    and weight decay add changes that this transform does not see.

    Source: `optax.keep_params_nonnegative`, adapted to gradients. optax changes the final update u: it sets u to -p
    where p + u < 0, so no parameter falls below 0. Here the gradient is changed before the learning rate and the
    optimizer, where u is not known. Both agree for a parameter at 0 under plain SGD.

    Raises:
        TransformError: when called with complex gradients, which have no order, or without the parameters.

    Example:
        >>> weight, grad = torch.tensor([0.0, 0.0, 2.0, -1.0]), torch.tensor([3.0, -3.0, 3.0, 3.0])
        >>> KeepNonnegative()([grad], Context(params=[weight]))
        [tensor([ 0., -3.,  3.,  0.])]
    """

    elementwise: ClassVar[bool] = True
    needs_params: ClassVar[bool] = True
    on_activations: ClassVar[bool] = False

    def __call__(self, tensors: list[Tensor], context: Context) -> list[Tensor]:
        """Each gradient with zeros where a step would decrease a parameter that is not above 0."""
        for index, tensor in enumerate(tensors):
            if tensor.is_complex():
                raise TransformError(
                    f"KeepNonnegative cannot order the complex elements of '{context.name_of(index)}' ({tensor.dtype}): "
                    "exclude it from the rule"
                )
        # For a sparse gradient, take the parameter at the stored entries only: all other elements are zero and stay zero.
        params = [
            param[tuple(tensor.coalesce().indices())] if tensor.is_sparse else param
            for param, tensor in zip(params_of(self, tensors, context), tensors, strict=True)
        ]

        def change(value: Tensor, owned: bool, param: Tensor) -> Tensor:
            return zeroed(value, (param <= 0) & (value > 0), owned)

        return over_each(tensors, context, change, params)


def _centred(value: Tensor, owned: bool, has_no_slices: bool) -> Tensor:
    if has_no_slices or not value.numel():
        return value if owned else value.clone()
    mean = value.mean(tuple(range(1, value.dim())), keepdim=True, dtype=WIDER.get(value.dtype))
    # For float16 and bfloat16 the mean is float32, so the difference is rounded once.
    return value.sub_(mean) if owned else (value - mean).to(value.dtype)
