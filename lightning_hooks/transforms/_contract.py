"""The contract of a transform with its tensors: the inputs that it may refuse, and the results that it may return."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from lightning_hooks.errors import TransformError
from lightning_hooks.transforms.base import Context, Transform


def params_of(owner: Transform, tensors: list[Tensor], context: Context) -> list[Tensor]:
    """The parameter of each gradient, detached from the graph; messages name the owner.

    Raises:
        TransformError: a tensor has no parameter, or a parameter of another shape.
    """
    params: list[Tensor] = []
    kind = type(owner).__name__
    for index, tensor in enumerate(tensors):
        param = context.params[index] if index < len(context.params) else None
        if param is None:
            raise TransformError(
                f"{kind} needs the parameter behind '{context.name_of(index)}', which has none: use it in a rule on params"
            )
        if param.shape != tensor.shape:
            raise TransformError(
                f"{kind} needs a gradient of the shape of its parameter; '{context.name_of(index)}' has a gradient of shape "
                f"{tuple(tensor.shape)} and a parameter of shape {tuple(param.shape)}"
            )
        params.append(param.detach())
    return params


def refuse_sparse(owner: Transform, tensors: list[Tensor], context: Context, why: str) -> None:
    """Raise if a tensor is sparse, for transforms whose result would be dense or meaningless.

    Raises:
        TransformError: the message names the tensor and the reason, `why`.
    """
    for index, tensor in enumerate(tensors):
        if tensor.is_sparse:
            raise TransformError(
                f"{type(owner).__name__} cannot take the sparse gradient of '{context.name_of(index)}': {why}; "
                "use sparse=False in the embedding, or exclude it from the rule"
            )


def unchanged(values: list[Tensor], owned: bool) -> list[Tensor]:
    """The values unchanged; copies if they are not owned, since the receiver of a result may overwrite the result."""
    return values if owned else [value.clone() for value in values]


def zeroed(value: Tensor, where: Tensor, owned: bool) -> Tensor:
    """A tensor with zeros where a mask is True, also in place of NaN and infinity; overwritten if it is owned."""
    return value.masked_fill_(where, 0) if owned else value.masked_fill(where, 0)


def written(value: Tensor, new: Tensor, owned: bool) -> Tensor:
    """A new value in the dtype of the tensor that it replaces; the tensor is overwritten if it is owned."""
    return value.copy_(new) if owned else new.to(value.dtype)


def without_aliases(results: Sequence[Tensor], tensors: Sequence[Tensor]) -> list[Tensor]:
    """The results, with a copy in place of each new tensor that shares memory with any of `tensors`.

    After that, the results can be written into the tensors one after the other. Without the copies, the first write could
    change a later result: a transform may return its tensors in another order, or views of them.
    """
    new_indices = [i for i, (result, tensor) in enumerate(zip(results, tensors, strict=True)) if result is not tensor]
    safe = list(results)
    if new_indices:
        given = {_memory(tensor) for tensor in tensors}
        for i in new_indices:
            if _memory(safe[i]) in given:
                safe[i] = safe[i].clone()
    return safe


def _memory(tensor: Tensor) -> int:
    """A number that is equal for tensors that share memory; unique to the tensor if its memory cannot be read."""
    try:
        return tensor.untyped_storage().data_ptr() or id(tensor)
    except Exception:
        # The tensor has no storage to read: it is sparse, of a subclass that gives none, or has no memory of its own.
        return id(tensor)


def explain_invalid(results: Any, tensors: Sequence[Tensor], name_of: Callable[[int], str]) -> str | None:
    """The reason why results cannot replace tensors, to follow the name of a transform in a message; None if they can.

    Args:
        results: the value that the transform returned.
        tensors: the tensors that the transform was given.
        name_of: returns the name of a tensor by its index.
    """
    if not isinstance(results, (list, tuple)) or len(results) != len(tensors):
        return f"must return a list of {len(tensors)} tensors, got {type(results).__name__}"
    for index, (new, old) in enumerate(zip(results, tensors, strict=True)):
        if new is old:
            continue
        if not isinstance(new, Tensor):
            return f"returned for {name_of(index)} {type(new).__name__}, not a tensor"
        for attribute in ("shape", "dtype", "device", "layout"):
            got, expected = getattr(new, attribute), getattr(old, attribute)
            if got != expected:
                shown = (tuple(got), tuple(expected)) if attribute == "shape" else (got, expected)
                return f"returned for {name_of(index)} a tensor of {attribute} {shown[0]}, not {shown[1]}"
    return None
