"""Looks whether an optimizer steps with gradients that the backward pass of another optimizer's loss has left."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import ClassVar, Final

from torch import Tensor
from torch.optim import Optimizer

from lightning_hooks.engine.lookouts.arrivals import LEAST, ArrivalLookout, State, line_here
from lightning_hooks.engine.lookouts.surroundings import Surroundings
from lightning_hooks.engine.participants.lookout import Lookout
from lightning_hooks.hooks.autograd import names
from lightning_hooks.records.facts import Sighting


class _Backward:
    """A backward pass.

    Args:
        number: of the pass.

    Attributes:
        reached: the numbers of the optimizers to whose parameters gradients came, in this order.
        used: the numbers of those that have stepped since.
    """

    __slots__ = ("number", "reached", "used")

    def __init__(self, number: int) -> None:
        self.number = number
        self.reached: list[int] = []
        self.used: set[int] = set()


class _Sum:
    """What `.grad` of a parameter holds.

    Args:
        backwards: the passes whose gradients have been added up since its optimizer stepped, each with the numbers of the
            optimizers that had stepped with the pass when the next one arrived.
        is_kept: whether gradients with which its optimizer has stepped are in it too.

    Attributes:
        state: of `.grad`; None while a gradient arrives.
    """

    __slots__ = ("backwards", "is_kept", "state")

    def __init__(self, backwards: Sequence[tuple[_Backward, frozenset[int]]] = (), is_kept: bool = False) -> None:
        self.backwards = [*backwards]
        self.is_kept = is_kept
        self.state: State | None = None


class LeftoverLookout(ArrivalLookout):
    """Looks whether an optimizer steps with gradients that another optimizer's loss has left in its parameters.

    So it is where the loss of a generator reaches the generator through the discriminator, and nobody clears what it leaves
    there. The exact condition: a backward pass brings gradients to the parameters of A and then to those of B, B steps, a
    pass without B adds gradients to those of A, which nobody has written to in between, and A steps with the sum. Losses are
    added up on purpose where both passes reach B, as in an accumulation, or where B comes first, as a head on a common body.
    """

    kinds: ClassVar[tuple[str, ...]] = ("gradients-of-another-loss",)
    steps: ClassVar[int] = 30

    def __init__(self, surroundings: Surroundings) -> None:
        super().__init__(surroundings)
        self._sums: dict[int, _Sum] = {}  # by the id of a parameter
        self._last: _Backward | None = None
        self._mixed: dict[tuple[int, int], int] = {}  # the number of steps, by the optimizer and the one of the other loss
        self._lines: dict[tuple[int, int], str] = {}

    def step_key(self, step: int, stage: str) -> Hashable | None:
        return super().step_key(step, stage) if len(self.around.optimizers()) > 1 else None

    def arrives(self, parameter: Tensor, number: int) -> None:
        current = names.graph_task_id()
        if self._last is None or self._last.number != current:
            self._last = _Backward(current)
        if number not in self._last.reached:
            self._last.reached.append(number)
        held = self._sums.get(id(parameter))
        if held is None or held.state is None or not held.state.is_that_of(parameter.grad) or parameter.grad is None:
            held = self._sums[id(parameter)] = _Sum()
        elif not held.backwards:
            held.is_kept = True
        held.backwards = [(each, frozenset(each.used)) for each, _ in held.backwards]
        held.backwards.append((self._last, frozenset()))

    def arrived(self, parameter: Tensor, number: int) -> None:
        held = self._sums.get(id(parameter))
        if held is not None:
            held.state = State(parameter.grad)

    def stepped(self, parameters: list[Tensor], optimizer: Optimizer, number: int) -> None:
        sums = [self._sums[id(each)] for each in parameters if id(each) in self._sums and each.grad is not None]
        if any(each.backwards for each in sums):
            self.made[number] = self.made.get(number, 0) + 1
        others = {other for each in sums if not each.is_kept for other in _left_by(each.backwards, number)}
        for other in others:
            self._mixed[number, other] = self._mixed.get((number, other), 0) + 1
            self._lines.setdefault((number, other), line_here())
        for each in sums:
            for backward, _ in each.backwards:
                backward.used.add(number)
        for parameter in parameters:
            held = self._sums[id(parameter)] = _Sum()
            held.state = State(parameter.grad)

    def left(self) -> None:
        super().left()
        self._sums.clear()
        self._last = None

    def sightings(self) -> tuple[Sighting, ...]:
        return tuple(self._sighting(*pair, count) for pair, count in self._mixed.items() if count >= LEAST)

    def _sighting(self, number: int, other: int, count: int) -> Sighting:
        text = (
            f"{self.name(number)} steps with gradients that the backward pass for {self.name(other)} has left, added to those "
            f"of its own loss, at {count} of {self.made[number]} steps"
        )
        return Sighting(self.kinds[0], text, self.rows(number), self._lines[number, other], measured=count, threshold=LEAST)


def _left_by(backwards: Sequence[tuple[_Backward, frozenset[int]]], number: int) -> set[int]:
    """The optimizers whose losses have left gradients in those of optimizer `number`."""
    return {
        other
        for position, (backward, used) in enumerate(backwards[:-1])
        for other in used
        if other != number
        and number in backward.reached
        and other in backward.reached
        and backward.reached.index(number) < backward.reached.index(other)
        and all(other not in later.reached for later, _ in backwards[position + 1 :])
    }


LOOKOUTS: Final[tuple[type[Lookout], ...]] = (LeftoverLookout,)
"""The lookouts of this file."""
