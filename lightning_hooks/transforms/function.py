"""A user's own function as a transform."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from lightning_hooks.errors import TransformError
from lightning_hooks.rules.reading import as_callable
from lightning_hooks.transforms._contract import explain_invalid
from lightning_hooks.transforms.base import Context, Transform


@dataclass(frozen=True)
class Function(Transform):
    """Apply a function of one tensor to each tensor.

    The function gets the tensor unchanged, even if it is sparse, and must return a new tensor of the same shape, dtype,
    device and layout. It must not change its argument and must not keep state, which no checkpoint would contain. For
    state, write a `Transform` (see `Context.state`).

    Source: `optax.stateless_with_tree_map`, without the parameters.

    Args:
        call: a callable `Tensor -> Tensor`, or the import path of one, as in `"torch.tanh"`.

    Raises:
        RuleError: the path cannot be imported, or the object cannot be called with a tensor.
        TransformError: the function returned something that cannot replace the tensor.

    Example:
        >>> import torch
        >>> Function("torch.sign")([torch.tensor([0.5, -2.0])], Context())
        [tensor([ 1., -1.])]
    """

    call: Callable[[Tensor], Tensor] | str
    _resolved: Callable[[Tensor], Tensor] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Setting an attribute of a frozen dataclass raises, so call the method of `object`.
        object.__setattr__(self, "_resolved", as_callable(self.call, "Function.call", "tensor"))

    def __call__(self, tensors: list[Tensor], context: Context) -> list[Tensor]:
        """The results of the function for each tensor."""
        results = [self._resolved(tensor) for tensor in tensors]
        wrong = explain_invalid(results, tensors, lambda index: f"'{context.name_of(index)}'")
        if wrong is not None:
            raise TransformError(f"Function.call {self.call!r} {wrong}")
        return results
