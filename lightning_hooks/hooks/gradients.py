"""Gradients that flow through modules: hooks on tensors and on the nodes of the autograd graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Variable
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from lightning_hooks.hooks.gate import Gate
from lightning_hooks.hooks.handles import OurHook

Visitor = Callable[[Tensor], Tensor | None]


class GradHook(OurHook):
    """A tensor hook that hands the gradient to visitors in order and returns what they made of it.

    Args:
        visitors: each sees the gradient as the former left it; None from a visitor leaves it unchanged.
        gate: closed, the gradient passes unseen.
    """

    def __init__(self, visitors: Sequence[Visitor], gate: Gate) -> None:
        self.visitors = visitors
        self.gate = gate

    def __call__(self, grad: Tensor | None) -> Tensor | None:
        """Called by autograd; the gradient is None where a consumer's backward returned none."""
        if grad is None or not self.gate.open:
            return None
        changed = False
        for visit in self.visitors:
            result = visit(grad)
            if result is not None:
                grad, changed = result, True
        return grad if changed else None


class Contribution:
    """A module's own contribution to the gradient of one of its inputs.

    A tensor hook on the input would give the total over everything that reads it. So the nodes between the module's outputs
    and the input are watched: those whose `next_functions` hold the input's gradient edge. Several of them (attention reads
    its input three times) add up to one contribution.

    Args:
        edge: the input's gradient edge, taken before the module ran.
        visit: receives the contribution, once a call and backward.
        gate: closed, nothing is seen.
    """

    def __init__(self, edge: GradientEdge, visit: Visitor, gate: Gate) -> None:
        self.edge = edge
        self.visit = visit
        self.gate = gate
        self._missing = 0
        self._expected = 0
        self._sum: Tensor | None = None

    def watch(self, node: Node, positions: list[int]) -> None:
        """Wait for one more node that feeds the input."""
        self._expected += 1
        self._missing += 1
        node.register_hook(_NodeHook(self, positions))

    def arrive(self, grads: Sequence[Tensor | None], positions: list[int]) -> None:
        """Take in what one node sends to the input."""
        if not self.gate.open:
            return
        if self._missing == self._expected and self._expected > 1:
            # Branches that this backward does not reach never arrive: the end of the backward settles the sum.
            Variable._execution_engine.queue_callback(self._settle)
        for position in positions:
            grad = grads[position] if position < len(grads) else None
            if grad is not None:
                self._sum = grad if self._sum is None else self._sum + grad
        self._missing -= 1
        if self._missing == 0:
            self._settle()

    def _settle(self) -> None:
        total, self._sum, self._missing = self._sum, None, self._expected
        if total is not None and self.gate.open:
            self.visit(total)


class _NodeHook(OurHook):
    def __init__(self, contribution: Contribution, positions: list[int]) -> None:
        self.contribution = contribution
        self.positions = positions

    def __call__(self, grad_inputs: Sequence[Tensor | None], grad_outputs: Sequence[Tensor | None]) -> None:
        self.contribution.arrive(grad_inputs, self.positions)


def sequence_number() -> int:
    """The number that the next node of the autograd graph will get: nodes below it were there before."""
    return int(torch._C._autograd._get_sequence_nr())


def contributions(tensors: Sequence[Tensor], visit: Visitor, gate: Gate) -> list[Contribution]:
    """One pending contribution for each input that needs a gradient, made before the module runs.

    Args:
        tensors: the inputs; duplicates count once.
        visit: receives each contribution.
        gate: the gate of the model.
    """
    if not torch.is_grad_enabled():
        return []
    distinct = {id(tensor): tensor for tensor in tensors if tensor.requires_grad}
    return [Contribution(get_gradient_edge(tensor), visit, gate) for tensor in distinct.values()]


def connect(pending: Sequence[Contribution], outputs: Sequence[Tensor], start: int) -> None:
    """Find the nodes between the outputs and the inputs of a call, and watch them.

    Args:
        pending: from `contributions`.
        outputs: the tensors that the module returned.
        start: `sequence_number()` before the call: older nodes are not the module's and not searched.
    """
    by_edge: dict[tuple[Any, int], Contribution] = {(c.edge.node, c.edge.output_nr): c for c in pending}
    todo = [tensor.grad_fn for tensor in outputs if tensor.grad_fn is not None]
    seen = set()
    while todo:
        node = todo.pop()
        if node in seen or node._sequence_nr() < start:
            continue
        seen.add(node)
        found: dict[Contribution, list[int]] = {}
        for position, (following, output_nr) in enumerate(node.next_functions):
            if following is None:
                continue
            contribution = by_edge.get((following, output_nr))
            if contribution is not None:
                found.setdefault(contribution, []).append(position)
            else:
                todo.append(following)
        for contribution, positions in found.items():
            contribution.watch(node, positions)


def takes_gradient(key: Any, output: Tensor) -> bool:
    """Whether the gradient of a tensor that a module returns as it was given is to be seen for this call.

    Activation checkpointing calls a module twice. A tensor that passes through both calls unchanged is the same one in the
    graph, or belongs to a graph from outside the checkpoint, and its gradient would count twice.

    Args:
        key: who sees it; the node of the tensor holds it as long as the graph lives.
        output: the tensor, which comes from a node of the graph.
    """
    if not torch.is_grad_enabled():  # the first call under a reentrant checkpoint
        return False
    node: Any = output.grad_fn
    mark = (key, output.output_nr)
    if mark in node.metadata:
        return False
    node.metadata[mark] = True
    return True


def has_gradient(hook: Any, args: tuple[Any, ...], output: Tensor) -> bool:
    """Whether a hook is to see the gradient of the result of a module, which comes from a node of the graph."""
    if any(output is given for given in args):
        return takes_gradient(hook, output)
    return torch.is_grad_enabled()  # else it was handed through in another way
