"""Walks through a graph of autograd, from its end towards the parameters."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightning_hooks.hooks.handles import at_first_switch
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


class _Shapes(NamedTuple):
    """The functions that tell shapes: of a result, by a node and its number, and of a saved tensor, by a node and a name."""

    of_result: Callable[[Any, int], Shape | None]
    of_saved: Callable[[Any, str], Shape | None]


def _nothing(node: Any, which: object) -> None:
    return None


_shapes = _Shapes(_nothing, _nothing)


def shape_of(node: Any, number: int = 0) -> Shape | None:
    """The shape of a result of the operation that a node differentiates; None if it is not known.

    Args:
        node: of the graph.
        number: of the result.
    """
    return _shapes.of_result(node, number)


def saved_shape(node: Any, name: str) -> Shape | None:
    """The shape of a tensor that a node has saved, without unpacking it; None if it is not known.

    To unpack a tensor under activation checkpointing would run a part of the model again.

    Args:
        node: of the graph.
        name: of the tensor, such as `other`.
    """
    return _shapes.of_saved(node, name)


@at_first_switch
def _try() -> None:
    global _shapes
    _shapes = private(
        "Node._input_metadata, Node._raw_saved_other",
        _find_shapes,
        _shapes,
        "shapes that do not fit each other in a loss are not seen",
    )


def _find_shapes() -> _Shapes:
    with torch.inference_mode(False), torch.enable_grad():
        leaf = torch.ones(2, 3, device="cpu", requires_grad=True)
        node = (leaf * torch.ones(3, device="cpu")).grad_fn
    if _shape_of_result(node, 0) != (2, 3) or _shape_of_saved(node, "other") != (3,):
        raise RuntimeError("it does something else in this torch")
    return _Shapes(_shape_of_result, _shape_of_saved)


def _shape_of_result(node: Any, number: int) -> Shape | None:
    if type(node).__name__ == "AccumulateGrad":
        return tuple(node.variable.shape)
    known = node._input_metadata
    return tuple(known[number].shape) if number < len(known) and not known[number].is_nested_tensor else None


def _shape_of_saved(node: Any, name: str) -> Shape | None:
    saved = getattr(node, f"_raw_saved_{name}", None)
    tensor = getattr(saved, "data", None) if getattr(saved, "unpack_hook", saved) is None else None
    return tuple(tensor.shape) if isinstance(tensor, Tensor) else None
