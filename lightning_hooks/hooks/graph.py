"""Walks through a graph of autograd, from its end towards the parameters."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor

from lightning_hooks.private import private

Shape = tuple[int, ...]


def operation_name(node: Any) -> str:
    """The name of an operation: `Softmax` of `SoftmaxBackward0`; empty without a node."""
    return str(type(node).__name__).partition("Backward")[0] if node is not None else ""


def nodes_from(tensors: Iterable[Tensor]) -> Iterator[Any]:
    """The nodes of the graphs of some tensors, each once, the nearest first."""
    waiting = deque(tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None)
    known: set[Any] = set(waiting)
    while waiting:
        node = waiting.popleft()
        yield node
        for behind, _ in node.next_functions:
            if behind is not None and behind not in known:
                known.add(behind)
                waiting.append(behind)


def leaves_of(tensors: Iterable[Tensor]) -> Iterator[Tensor]:
    """The leaves whose gradients a backward pass of some tensors accumulates, the nearest first."""
    for node in nodes_from(tensors):
        if type(node).__name__ == "AccumulateGrad":
            yield node.variable


def shape_of(node: Any, number: int = 0) -> Shape | None:
    """The shape of a result of the operation that a node differentiates; None if it is not known.

    Args:
        node: of the graph.
        number: of the result.
    """
    return _find_shape()(node, number)


def saved_shape(node: Any, name: str) -> Shape | None:
    """The shape of a tensor that a node has saved, without unpacking it; None if it is not known.

    To unpack a tensor under activation checkpointing would run a part of the model again.

    Args:
        node: of the graph.
        name: of the tensor, such as `other`.
    """
    saved = getattr(node, f"_raw_saved_{name}", None)
    tensor = getattr(saved, "data", None) if getattr(saved, "unpack_hook", saved) is None else None
    return tuple(tensor.shape) if isinstance(tensor, Tensor) else None


@cache
def _find_shape() -> Callable[[Any, int], Shape | None]:
    unknown: Callable[[Any, int], Shape | None] = _no_shape
    return private("Node._input_metadata", _look_for_shape, unknown, "shapes that do not fit each other in a loss are not seen")


def _no_shape(node: Any, number: int) -> None:
    return None


def _look_for_shape() -> Callable[[Any, int], Shape | None]:
    def shape(node: Any, number: int) -> Shape | None:
        if type(node).__name__ == "AccumulateGrad":
            return tuple(node.variable.shape)
        known = node._input_metadata
        return tuple(known[number].shape) if number < len(known) and not known[number].is_nested_tensor else None

    with torch.inference_mode(False), torch.enable_grad():
        node = torch.ones(2, 3, device="cpu", requires_grad=True).sum(1).grad_fn
    if shape(node, 0) != (2,):
        raise RuntimeError("it does something else in this torch")
    return shape
