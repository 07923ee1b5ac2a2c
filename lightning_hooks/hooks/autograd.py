"""The private names of autograd: what they stand for in the installed torch, or public fallbacks.

They are tried in a small backward pass when the first gate is made, not on import: after a backward pass a process cannot be
forked for another one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import Variable

from lightning_hooks.hooks.handles import at_first_gate
from lightning_hooks.private import note_newer_torch, private


class Names:
    """What is in use, here the fallbacks.

    Attributes:
        graph_task_id: -1 outside a backward pass.
        numbers: of the next node of a graph, and of a given node; nodes with lower numbers were there before.
        at_end: calls a function when the backward pass under way ends; the fallback does not.
    """

    graph_task_id: Callable[[], int] = staticmethod(lambda: -1)
    numbers: tuple[Callable[[], int], Callable[[Any], int]] = (lambda: 0, lambda node: 0)
    at_end: Callable[[Callable[[], None]], None] = staticmethod(lambda function: None)


names = Names()


@at_first_gate
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


def _graph_task_id() -> Callable[[], int]:
    found: Callable[[], int] = torch._C._current_graph_task_id
    inside: list[int] = []
    _backward(lambda: inside.append(found()))
    _check(found() == -1 and inside[0] >= 0)
    return found


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
    found: Callable[[Callable[[], None]], None] = Variable._execution_engine.queue_callback
    order: list[str] = []

    def inside() -> None:
        found(lambda: order.append("end"))
        order.append("inside")

    _backward(inside)
    _check(order == ["inside", "end"])
    return found


def _backward(inside: Callable[[], object]) -> None:
    """A small backward pass, in which a function is called."""
    with torch.inference_mode(False), torch.enable_grad():
        leaf = torch.ones(1, requires_grad=True, device="cpu")
        result = leaf.sum()
        result.register_hook(lambda grad: inside() and None)
        result.backward()


def _check(works: bool) -> None:
    if not works:
        raise RuntimeError("it does something else in this torch")
