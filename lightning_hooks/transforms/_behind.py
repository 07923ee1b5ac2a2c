"""What several transforms share: parameters behind gradients, refusals, how a result is placed, and what it may be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from lightning_hooks.errors import TransformError
from lightning_hooks.transforms.base import Context, Transform


def params_behind(owner: Transform, tensors: list[Tensor], context: Context) -> list[Tensor]:
    """The parameter of each gradient, cut off from the graph; messages name the owner.

    Raises:
        TransformError: if a tensor has no parameter, or one of another shape.
    """
    found: list[Tensor] = []
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
        found.append(param.detach())
    return found


def refuse_sparse(owner: Transform, tensors: list[Tensor], context: Context, why: str) -> None:
    """Refuse sparse tensors where the result would not be sparse, or would mean something else.

    Raises:
        TransformError: with the name of the tensor and the reason.
    """
    for index, tensor in enumerate(tensors):
        if tensor.is_sparse:
            raise TransformError(
                f"{type(owner).__name__} cannot take the sparse gradient of '{context.name_of(index)}': {why}; "
                "use sparse=False in the embedding, or exclude it from the rule"
            )


def unchanged(values: list[Tensor], owned: bool) -> list[Tensor]:
    """The values unchanged; copies if others own them, since the receiver of a result may overwrite it."""
    return values if owned else [value.clone() for value in values]


def zeroed(value: Tensor, where: Tensor, owned: bool) -> Tensor:
    """A tensor with zeros where a mask is set, even for NaN and infinity; overwritten if it is owned."""
    return value.masked_fill_(where, 0) if owned else value.masked_fill(where, 0)


def written(value: Tensor, new: Tensor, owned: bool) -> Tensor:
    """A result in the dtype of the tensor that it replaces, which is overwritten if it is owned."""
    return value.copy_(new) if owned else new.to(value.dtype)


def readable(results: Sequence[Tensor], tensors: Sequence[Tensor]) -> list[Tensor]:
    """Results that can be written into the tensors one after the other: copies of those that share memory with any of these.

    A transform may return what it was given in another order, or views of it.
    """
    new = [i for i, (result, tensor) in enumerate(zip(results, tensors, strict=True)) if result is not tensor]
    found = list(results)
    if new:
        given = {_memory(tensor) for tensor in tensors}
        for i in new:
            if _memory(found[i]) in given:
                found[i] = found[i].clone()
    return found


def _memory(tensor: Tensor) -> int:
    """Equal for tensors that share memory, as far as that can be known."""
    try:
        return tensor.untyped_storage().data_ptr() or id(tensor)
    except Exception:  # sparse, a subclass that refuses it, or without memory of its own
        return id(tensor)


def wrong_results(results: Any, tensors: Sequence[Tensor], named: Callable[[int], str]) -> str | None:
    """Why results cannot replace tensors, in words that follow who returned them; None where they can.

    Args:
        tensors: what the transform was given.
        named: the name of a tensor by its index.
    """
    if not isinstance(results, (list, tuple)) or len(results) != len(tensors):
        return f"must return a list of {len(tensors)} tensors, got {type(results).__name__}"
    for index, (new, old) in enumerate(zip(results, tensors, strict=True)):
        if new is old:
            continue
        if not isinstance(new, Tensor):
            return f"returned for {named(index)} {type(new).__name__}, not a tensor"
        for attribute in ("shape", "dtype", "device", "layout"):
            got, wanted = getattr(new, attribute), getattr(old, attribute)
            if got != wanted:
                shown = (tuple(got), tuple(wanted)) if attribute == "shape" else (got, wanted)
                return f"returned for {named(index)} a tensor of {attribute} {shown[0]}, not {shown[1]}"
    return None
