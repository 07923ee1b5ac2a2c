"""What lookouts on the loss have in common: they look at the graphs of the first losses."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Any, Final

from torch import Tensor

from lightning_hooks.engine.lookouts.surroundings import Surroundings
from lightning_hooks.engine.participants.lookout import Lookout
from lightning_hooks.hooks.graph import operation_name
from lightning_hooks.records.facts import Sighting

STEPS: Final = 3
"""The number of first steps whose losses are looked at: later ones have the same graph."""
_LOSSES: Final = 8
"""The number of losses of a step that are looked at."""
_TERMS: Final = 60
"""The number of operations on numbers alone, such as the sum of two terms, that are followed from a loss."""
_ARRANGING: Final = frozenset(
    {"View", "UnsafeView", "ReshapeAlias", "Transpose", "T", "Permute", "Squeeze", "Unsqueeze", "Clone", "ToCopy", "Alias"}
)
"""Operations that give the same numbers in another arrangement or format."""


class LossGraphLookout(Lookout):
    """Looks at the first losses before their backward passes. It reads the graph, and no number."""

    def __init__(self, surroundings: Surroundings) -> None:
        self._seen: dict[Sighting, None] = {}
        self._steps = self._losses = 0

    def step_key(self, step: int, stage: str) -> Hashable | None:
        return self.kinds if stage == "train" and self._steps < STEPS else None

    def begin_step(self, step: int, stage: str, reporting: bool) -> None:
        self._losses = 0

    def end_step(self) -> None:
        self._steps += self._losses > 0

    def saw_loss(self, loss: Tensor) -> None:
        self._losses += 1
        if self._losses <= _LOSSES and loss.grad_fn is not None:
            self._seen.update(dict.fromkeys(self.look(loss.grad_fn)))

    def look(self, loss: Any) -> Iterable[Sighting]:
        """What there is to say of a loss, by its node."""
        raise NotImplementedError

    def sightings(self) -> tuple[Sighting, ...]:
        return tuple(self._seen)


def terms_of(loss: Any, is_number: Any) -> Iterator[Any]:
    """The nodes from a loss on whose results are single numbers, the nearest first.

    Args:
        loss: the node of the loss.
        is_number: returns whether the result of a node, by the node and the number of the result, is one number.
    """
    waiting, known = [loss], {loss}
    for _ in range(_TERMS):
        if not waiting:
            return
        node = waiting.pop(0)
        yield node
        for behind, number in node.next_functions:
            if behind is not None and behind not in known and is_number(behind, number):
                known.add(behind)
                waiting.append(behind)


def arranged(node: Any) -> Any:
    """The node behind operations that only arrange numbers; None if there is none."""
    while node is not None and operation_name(node) in _ARRANGING:
        node = node.next_functions[0][0] if node.next_functions else None
    return node
