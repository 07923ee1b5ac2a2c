"""Looks for modules and parameters in plain lists of a model, which no optimizer, device move or checkpoint knows."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from torch import Tensor, nn

from lightning_hooks.engine.lookouts.surroundings import Surroundings
from lightning_hooks.engine.participants.lookout import Lookout
from lightning_hooks.errors import counted
from lightning_hooks.hooks import Handles, HookSwitch, OurHook
from lightning_hooks.records.facts import Sighting

KIND: Final = "not-registered"
STEPS: Final = 12
"""The number of first steps in which nothing must have changed a parameter: a critic may be trained at every fifth."""
_LEAST: Final = 6
"""The number of gradients that must have arrived."""
_MOST: Final = 256
"""The number of entries of a list that are looked at."""
_WATCHED: Final = 4
"""The number of parameters of a list at which gradients are noted."""
_OF_TORCH: Final = frozenset({*vars(nn.Module()), "_hparams", "_hparams_initial", "_trainer", "_fabric"})
"""The attributes of modules that are no user's."""


@dataclass
class _Listed:
    """A list of a model with parameters that are not registered.

    Args:
        name: of the attribute.
        what: it is, in words.
        is_single: whether it has one entry, as one that hides a module on purpose.
        parameters: that can be trained.
        versions: how often the memory of each watched parameter had been written to at first.
        arrived: the number of gradients that have arrived at these.
    """

    name: str
    what: str
    is_single: bool
    parameters: list[nn.Parameter]
    versions: list[int] = field(default_factory=list)
    arrived: int = 0

    @property
    def watched(self) -> list[nn.Parameter]:
        return self.parameters[:: max(1, len(self.parameters) // _WATCHED)][:_WATCHED]

    @property
    def is_still(self) -> bool:
        """Whether nothing has written to the parameters that are watched."""
        return [each._version for each in self.watched] == self.versions


class UnregisteredLookout(Lookout):
    """Looks whether gradients arrive at parameters in plain lists, tuples and dictionaries, which nothing then changes.

    A part that is kept there on purpose gets no gradient, is in evaluation mode, or is changed by an optimizer.
    """

    kinds: ClassVar[tuple[str, ...]] = (KIND,)

    def __init__(self, surroundings: Surroundings) -> None:
        self._around = surroundings
        self._listed: list[_Listed] | None = None
        self._seen: tuple[Sighting, ...] = ()
        self._looked = 0

    def step_key(self, step: int, stage: str) -> Hashable | None:
        return "unregistered" if stage == "train" and self._looked < STEPS and self._listed != [] else None

    def register(self, key: Any, switch: HookSwitch, handles: Handles) -> None:
        model = self._around.model()
        if self._listed is None:
            self._listed = [] if model is None else [*_lists_of(model, self._held())]
        for listed in self._listed:
            listed.versions = listed.versions or [each._version for each in listed.watched]
            for parameter in listed.watched:
                handles.register(parameter.register_hook, _Arrival(listed, switch))

    def _held(self) -> set[int]:
        return {id(each) for _, parameters in self._around.parameters() for each in parameters}

    def end_step(self) -> None:
        self._looked += 1
        if self._looked >= STEPS:
            held = self._held()
            found = [each for each in self._listed or () if each.arrived >= _LEAST and each.is_still]
            self._seen = tuple(_sighting(each) for each in found if not any(id(one) in held for one in each.parameters))
            self._listed = []

    def left(self) -> None:
        self._listed = []

    def sightings(self) -> tuple[Sighting, ...]:
        return self._seen


def _lists_of(model: nn.Module, held: set[int]) -> Iterator[_Listed]:
    """The lists of a model with parameters that neither the model has nor an optimizer holds."""
    known = held | {id(each) for each in model.parameters()}
    for prefix, module in model.named_modules():
        for attribute, value in list(vars(module).items()):
            if attribute in _OF_TORCH or not isinstance(value, (list, tuple, dict)) or not value:
                continue
            entries = [*_entries(value)]
            parameters = {id(one): one for each in entries for one in _trained(each) if id(one) not in known}
            if parameters:
                noun = "module" if any(isinstance(each, nn.Module) for each in entries) else "parameter"
                what = f"a {_kind(value)} of {counted(len(entries), noun)}"
                name = f"{prefix}.{attribute}" if prefix else attribute
                yield _Listed(name, what, len(entries) == 1 and not isinstance(value, dict), [*parameters.values()])


def _kind(value: object) -> str:
    return next(kind.__name__ for kind in (list, tuple, dict) if isinstance(value, kind))


def _entries(value: Any, deep: bool = True) -> Iterator[nn.Module | nn.Parameter]:
    """The modules and parameters in a list, and in the lists in it."""
    for each in [*(value.values() if isinstance(value, dict) else value)][:_MOST]:
        if isinstance(each, (nn.Module, nn.Parameter)):
            yield each
        elif deep and isinstance(each, (list, tuple, dict)):
            yield from _entries(each, deep=False)


def _trained(entry: nn.Module | nn.Parameter) -> list[nn.Parameter]:
    """The parameters of an entry that can be trained. A module in evaluation mode is kept as it is on purpose."""
    if isinstance(entry, nn.Module):
        return [each for each in entry.parameters() if each.requires_grad] if entry.training else []
    return [entry] if entry.requires_grad else []


def _sighting(listed: _Listed) -> Sighting:
    text = (
        f"it is {listed.what}, which the model does not register: gradients arrive at its "
        f"{counted(len(listed.parameters), 'parameter')}, and in {STEPS} steps nothing has changed them"
    )
    return Sighting(KIND, text, (listed.name,), is_fact=not listed.is_single)


class _Arrival(OurHook):
    """A hook on the gradient of a parameter, which it only notes."""

    def __init__(self, listed: _Listed, switch: HookSwitch) -> None:
        self.switch = switch
        self._listed = listed

    def __call__(self, gradient: Tensor) -> None:
        if self.switch.is_on:
            self._listed.arrived += 1


LOOKOUTS: Final[tuple[type[Lookout], ...]] = (UnregisteredLookout,)
"""The lookouts of this file."""
