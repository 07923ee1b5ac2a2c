"""Walks through a graph of autograd, from its end towards the parameters."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor


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
