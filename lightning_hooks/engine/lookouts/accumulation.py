"""Looks whether gradients of several batches are added up without being divided by the number of batches."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from torch import Tensor
from torch.optim import SGD, Optimizer

from lightning_hooks.engine.lookouts.arrivals import LEAST, ArrivalLookout, State, line_here
from lightning_hooks.engine.lookouts.surroundings import Surroundings
from lightning_hooks.engine.participants.lookout import Lookout
from lightning_hooks.hooks.autograd import names
from lightning_hooks.records.facts import Sighting

_MEAN: Final = 1
"""The number by which autograd nodes of losses keep `reduction="mean"`."""
_PASSED: Final = ("ToCopyBackward", "SqueezeBackward", "ViewBackward", "CloneBackward")
"""The beginnings of the names of nodes that change no number of a loss."""


class _Sum:
    """What `.grad` of a parameter holds.

    Attributes:
        lines: of the backward passes whose gradients have been added up, each empty if its loss is no plain mean.
        passes: the numbers of these passes.
        state: of `.grad` when the last one was added.
    """

    __slots__ = ("lines", "passes", "state")

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.passes: set[int] = set()
        self.state: State | None = None


class AccumulationLookout(ArrivalLookout):
    """Looks for steps of `SGD` with a sum of gradients of means, whose backward passes one line of the user's code begins.

    Optimizers that divide gradients by their size, as Adam does, take the same step with a sum as with a mean. Which operation
    a loss comes from, its graph says, so that no number is read: a loss that something divides or multiplies is not
    told, nor gradients that somebody writes to before the step.
    """

    kinds: ClassVar[tuple[str, ...]] = ("accumulation-not-divided",)

    def __init__(self, surroundings: Surroundings) -> None:
        super().__init__(surroundings)
        self._line = ""  # the line of the backward pass that begins, if its loss is a plain mean
        self._pass: tuple[int, str] = (-1, "")  # the number of the last pass, and its line
        self._sums: dict[int, _Sum] = {}  # by the id of a parameter
        self._seen: dict[int, list[tuple[int, str]]] = {}  # how many passes, and their line, by the optimizer

    def saw_loss(self, loss: Tensor) -> None:
        self._line = line_here() if is_plain_mean(loss.grad_fn) else ""

    def arrives(self, parameter: Tensor, number: int) -> None:
        current = names.graph_task_id()
        if self._pass[0] != current:
            self._pass, self._line = (current, self._line), ""
        held = self._sums.get(id(parameter))
        if held is None or held.state is None or parameter.grad is None or not held.state.is_that_of(parameter.grad):
            held = self._sums[id(parameter)] = _Sum()
        if current not in held.passes:
            held.passes.add(current)
            held.lines.append(self._pass[1])

    def arrived(self, parameter: Tensor, number: int) -> None:
        held = self._sums.get(id(parameter))
        if held is not None:
            held.state = State(parameter.grad)

    def stepped(self, parameters: list[Tensor], optimizer: Optimizer, number: int) -> None:
        sums = [(each, held) for each in parameters if (held := self._sums.pop(id(each), None)) is not None]
        if not sums:
            return
        self.made[number] = self.made.get(number, 0) + 1
        lines = sums[0][1].lines
        # Gradients that somebody has divided or clipped since they arrived are not as long as their sum was.
        is_sum = all(held.lines == lines and held.state is not None and held.state.is_that_of(each.grad) for each, held in sums)
        if is_sum and len(lines) > 1 and lines[0] and len({*lines}) == 1 and isinstance(optimizer, SGD):
            self._seen.setdefault(number, []).append((len(lines), lines[0]))

    def left(self) -> None:
        super().left()
        self._sums.clear()

    def sightings(self) -> tuple[Sighting, ...]:
        return tuple(self._sighting(number, seen) for number, seen in self._seen.items() if len(seen) >= LEAST)

    def _sighting(self, number: int, seen: list[tuple[int, str]]) -> Sighting:
        count, line = seen[0]
        text = (
            f"{self.name(number)} steps with the sum of the gradients of {count} backward passes, whose losses are means that "
            f"nothing divides by {count}: a step is {count} times as long as one with their mean"
        )
        return Sighting(self.kinds[0], text, self.rows(number), line, is_fact=False, measured=count, threshold=1)


def is_plain_mean(node: Any) -> bool:
    """Whether a loss, by its node in the graph, is a mean, or a sum of losses one of which is a mean.

    Example:
        >>> import torch
        >>> values = torch.ones(3, requires_grad=True)
        >>> is_plain_mean(values.mean().grad_fn), is_plain_mean((values.mean() / 4).grad_fn)
        (True, False)
    """
    name = type(node).__name__
    while name.startswith(_PASSED):
        node = node.next_functions[0][0]
        name = type(node).__name__
    if name.startswith(("AddBackward", "SubBackward")):
        return any(is_plain_mean(each) for each, _ in node.next_functions if each is not None)
    return name.startswith("MeanBackward") or getattr(node, "_saved_reduction", None) == _MEAN


LOOKOUTS: Final[tuple[type[Lookout], ...]] = (AccumulationLookout,)
"""The lookouts of this file."""
