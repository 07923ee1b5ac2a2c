"""Looks whether gradients are cleared between the backward pass and the step that should use them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Final, NamedTuple

from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_hooks.engine.lookouts.arrivals import LEAST, ArrivalLookout, State, line_here, weakly
from lightning_hooks.engine.lookouts.surroundings import Surroundings
from lightning_hooks.engine.participants.lookout import Lookout
from lightning_hooks.hooks import Listening
from lightning_hooks.records.facts import Sighting


class _Call(NamedTuple):
    """A call of `zero_grad`, and the state of a gradient after it."""

    state: State
    of: str
    line: str


class ClearedLookout(ArrivalLookout):
    """Looks whether `zero_grad` is called when gradients have arrived and their optimizer has not stepped with them yet.

    A step counts if all its gradients were cleared so and nobody has written to them since: a gradient that is set to another
    tensor, as in surgery on gradients, is none that was cleared.
    """

    kinds: ClassVar[tuple[str, ...]] = ("cleared-before-step",)

    def __init__(self, surroundings: Surroundings) -> None:
        super().__init__(surroundings)
        self._arrived: set[int] = set()  # the ids of parameters whose gradients no step has used yet
        self._cleared: dict[int, _Call] = {}  # the last call that cleared such a gradient
        self._followed: dict[int, Tensor] = {}
        self._seen: dict[int, list[_Call]] = {}  # the calls before the steps of each optimizer

    def calls(self) -> Iterable[Listening]:
        return (Listening(owner, "zero_grad", weakly(self._before_clearing)) for owner in (Optimizer, nn.Module))

    def arrives(self, parameter: Tensor, number: int) -> None:
        self._arrived.add(id(parameter))
        self._followed[id(parameter)] = parameter
        self._cleared.pop(id(parameter), None)

    def _before_clearing(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Callable[[Any], None] | None:
        if not args or not self._arrived:
            return None
        return lambda result: self._after_clearing(args[0])

    def _after_clearing(self, owner: Any) -> None:
        """Note the gradients that a call may have cleared. A module's `zero_grad` may be called for a part of the model."""
        held = _parameters_of(owner)
        ids = {key for key in self._arrived if key in held and key not in self._cleared}
        if ids:
            line = line_here()
            for key in ids:
                self._cleared[key] = _Call(State(self._followed[key].grad), type(owner).__name__, line)

    def stepped(self, parameters: list[Tensor], optimizer: Optimizer, number: int) -> None:
        waiting = [each for each in parameters if id(each) in self._arrived]
        if waiting:
            self.made[number] = self.made.get(number, 0) + 1
            calls = [self._cleared.get(id(each)) for each in waiting]
            known = [call for call in calls if call is not None]
            if len(known) == len(waiting) and all(
                call.state.is_that_of(each.grad) for call, each in zip(known, waiting, strict=True)
            ):
                self._seen.setdefault(number, []).append(known[0])
        for each in waiting:
            self._arrived.discard(id(each))
            self._cleared.pop(id(each), None)

    def left(self) -> None:
        super().left()
        self._arrived.clear()
        self._cleared.clear()
        self._followed.clear()

    def sightings(self) -> tuple[Sighting, ...]:
        return tuple(self._sighting(number, calls) for number, calls in self._seen.items() if len(calls) >= LEAST)

    def _sighting(self, number: int, calls: list[_Call]) -> Sighting:
        text = (
            f"`zero_grad()` runs after the backward pass and before the step, so that {self.name(number)} has stepped without "
            f"gradients at {len(calls)} of {self.made[number]} steps"
        )
        return Sighting(self.kinds[0], text, self.rows(number), calls[0].line, measured=len(calls), threshold=LEAST)


def _parameters_of(owner: Any) -> set[int]:
    if isinstance(owner, Optimizer):
        return {id(each) for group in owner.param_groups for each in group["params"]}
    return {id(each) for each in owner.parameters()} if isinstance(owner, nn.Module) else set()


LOOKOUTS: Final[tuple[type[Lookout], ...]] = (ClearedLookout,)
"""The lookouts of this file."""
