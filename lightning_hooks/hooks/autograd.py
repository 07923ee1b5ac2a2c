"""Private functions of autograd that this package uses, each with a public fallback.

They are tried in a small backward pass when the first switch is created, not on import: after a backward pass a forked process
cannot run another one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import Variable
from torch.autograd.graph import get_gradient_edge

from lightning_hooks.hooks.handles import at_first_switch
from lightning_hooks.private import note_newer_torch, private


class Names:
    """The functions in use. The class attributes are the fallbacks.

    Attributes:
        graph_task_id: returns the number of the current backward pass, -1 outside a backward pass.
        numbers: two functions, which return the number of the next node of a graph and the number of a given node; later nodes
            have greater numbers.
        at_end: calls a function when the current backward pass ends; the fallback never calls it.
        accumulates: returns whether the current backward pass adds gradients to `.grad`, as `.backward()` does and
            `torch.autograd.grad` does not; called in a hook. The fallback is None.
        reaches: returns whether the current backward pass computes the gradient of a leaf, given the leaf's node.
    """

    graph_task_id: Callable[[], int] = staticmethod(lambda: -1)
    numbers: tuple[Callable[[], int], Callable[[Any], int]] = (lambda: 0, lambda node: 0)
    at_end: Callable[[Callable[[], None]], None] = staticmethod(lambda function: None)
    accumulates: Callable[[], bool] | None = None
    reaches: Callable[[Any], bool] = staticmethod(lambda node: False)


names = Names()


@at_first_switch
def _try() -> None:
    note_newer_torch(torch.__version__)
    names.graph_task_id = private(
        "torch._C._current_graph_task_id",
        _graph_task_id,
        Names.graph_task_id,
        "activations under activation checkpointing are counted twice",
    )
    names.numbers = private(
        "torch._C._autograd._get_sequence_nr, Node._sequence_nr",
        _numbers,
        Names.numbers,
        "the search for the nodes of a module (input_grad) goes through the whole graph below it",
    )
    names.at_end = private(
        "Variable._execution_engine.queue_callback",
        _at_end,
        Names.at_end,
        "no value of input_grad in a backward pass that does not reach every use of the input",
    )
    nothing: tuple[Callable[[], bool] | None, Callable[[Any], bool]] = None, Names.reaches
    names.accumulates, names.reaches = private(
        "torch._C._will_engine_execute_node, _current_autograd_node",
        _backward_functions,
        nothing,
        "every torch.autograd.grad without create_graph=True counts as the backward of the loss",
    )


def _graph_task_id() -> Callable[[], int]:
    task_id: Callable[[], int] = torch._C._current_graph_task_id
    inside: list[int] = []
    _backward(lambda: inside.append(task_id()))
    _check(task_id() == -1 and inside[0] >= 0)
    return task_id


def _numbers() -> tuple[Callable[[], int], Callable[[Any], int]]:
    upcoming: Callable[[], int] = torch._C._autograd._get_sequence_nr
    before = upcoming()
    with torch.inference_mode(False), torch.enable_grad():
        node: Any = torch.ones(1, requires_grad=True, device="cpu").sum().grad_fn
    _check(before <= node._sequence_nr() < upcoming())
    return upcoming, _number_of


def _number_of(node: Any) -> int:
    return int(node._sequence_nr())


def _at_end() -> Callable[[Callable[[], None]], None]:
    queue_callback: Callable[[Callable[[], None]], None] = Variable._execution_engine.queue_callback
    order: list[str] = []

    def inside() -> None:
        queue_callback(lambda: order.append("end"))
        order.append("inside")

    _backward(inside)
    _check(order == ["inside", "end"])
    return queue_callback


def _backward_functions() -> tuple[Callable[[], bool], Callable[[Any], bool]]:
    """Try both functions in a hook on an inner node of a graph with two leaves, in backward passes of each kind."""
    executes: Callable[[Any], bool] = torch._C._will_engine_execute_node
    current: Callable[[], Any] = torch._C._current_autograd_node

    def reaches(node: Any) -> bool:
        try:
            return executes(node)
        # Torch raises for a leaf whose gradient `torch.autograd.grad` returns. The backward pass does reach that leaf.
        except RuntimeError:
            return True

    def accumulates() -> bool:
        leaf = _leaf_below(current())
        try:
            return leaf is not None and executes(leaf)
        except RuntimeError:
            return False

    answers: list[tuple[bool, ...]] = []
    with torch.inference_mode(False), torch.enable_grad():
        leaf, other = (torch.ones(1, requires_grad=True, device="cpu") for _ in range(2))
        nodes = [get_gradient_edge(each).node for each in (leaf, other)]
        result = leaf.exp() * other.exp()
        result.register_hook(lambda grad: answers.append((accumulates(), *map(reaches, nodes))))
        result.backward(retain_graph=True)
        result.backward(inputs=[leaf, other], retain_graph=True)
        torch.autograd.grad(result, [leaf, other], retain_graph=True)
        torch.autograd.grad(result, other, retain_graph=True)
        torch.autograd.grad(result, leaf, create_graph=True)
    _check(answers == [(True, True, True)] * 2 + [(False, True, True), (False, False, True), (False, True, False)])
    return accumulates, reaches


def _leaf_below(node: Any) -> Any:
    """The node of any one leaf in the graph below a node; None if there is no leaf."""
    todo, visited = [node], {node}
    while todo:
        node = todo.pop()
        if node.name() == "torch::autograd::AccumulateGrad":
            return node
        following = [each for each, _ in node.next_functions if each is not None and each not in visited]
        visited.update(following)
        todo += following
    return None


def _backward(inside: Callable[[], object]) -> None:
    """Run a small backward pass, and call a function inside it."""
    with torch.inference_mode(False), torch.enable_grad():
        leaf = torch.ones(1, requires_grad=True, device="cpu")
        result = leaf.sum()
        result.register_hook(lambda grad: inside() and None)
        result.backward()


def _check(works: bool) -> None:
    if not works:
        raise RuntimeError("it does something else in this torch")
