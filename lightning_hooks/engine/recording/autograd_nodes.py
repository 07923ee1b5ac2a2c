"""Which node of autograd runs, and which operator of the forward pass it differentiates."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch

from lightning_hooks.engine.recording.module_calls import OUTSIDE, Call
from lightning_hooks.engine.recording.source_lines import Line, user_line
from lightning_hooks.private import private


class _Engine(NamedTuple):
    """The private functions of autograd that tell its running node and the numbers of nodes."""

    node: Callable[[], Any]
    next_number: Callable[[], int]
    number: Callable[[Any], int]


class ForwardOperators:
    """The module and the line of each operator of the forward pass that has a node, by the node's sequence number."""

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._contexts: list[tuple[Call, Line | None]] = []

    def note(self, call: Call, node: Any) -> None:
        """Note the operator that a dispatch mode has received.

        Autograd numbers its nodes, and creates that of an operator right before it runs the operator. An operator without a
        node leaves the number as it was, so the first operator after a new number is the one that has the node. In the backward
        pass operators have nodes if they are differentiated once more, or if activation checkpointing runs a module again.

        Args:
            call: the call of the module that runs.
            node: the node of autograd that runs; None in the forward pass.
        """
        number = _engine().next_number() - 1
        if number >= 0 and (not self._numbers or number > self._numbers[-1]):
            context = (call, user_line()) if node is None or call.type else self.of_node(node)
            self._numbers.append(number)
            self._contexts.append(context)

    def of_node(self, node: Any) -> tuple[Call, Line | None]:
        """The module and the line of the operator that a node differentiates."""
        number = _engine().number(node)
        if not self._numbers or number > self._numbers[-1]:
            # The nodes that add to the gradient of a parameter have no number.
            return OUTSIDE, None
        # An operator may have created several nodes before the dispatch mode received it.
        index = bisect_right(self._numbers, number) - 1
        return self._contexts[index] if index >= 0 else (OUTSIDE, None)


def running_node() -> Any:
    """The node of autograd that runs in this thread; None if there is none."""
    return _engine().node()


@cache
def _engine() -> _Engine:
    return private(
        "torch._C._current_autograd_node, torch._C._autograd._get_sequence_nr, Node._sequence_nr",
        _find,
        _Engine(lambda: None, lambda: 0, lambda node: 0),
        "a flight record does not name the module and the line of a backward operation",
    )


def _find() -> _Engine:
    current, next_number = torch._C._current_autograd_node, torch._C._autograd._get_sequence_nr
    with torch.enable_grad(), torch.inference_mode(False):
        node = torch.ones(1, device="cpu", requires_grad=True).mul(2).grad_fn
    if node is None or current() is not None or next_number() != node._sequence_nr() + 1:
        raise RuntimeError("it does something else in this torch")
    return _Engine(current, next_number, lambda node: int(node._sequence_nr()))
