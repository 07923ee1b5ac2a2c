"""The rule on layers of a list that are one object, as `[layer] * n` makes them."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple

from lightning_hooks.errors import counted, listed
from lightning_hooks.health.evidence import Evidence
from lightning_hooks.health.memo import memo_of
from lightning_hooks.health.roles import is_batch_norm
from lightning_hooks.health.rule import HealthRule, Kind, Symptom
from lightning_hooks.health.rules.base import Obstacles, no_structure
from lightning_hooks.records.facts import Structure


class _Shared(NamedTuple):
    """A module with parameters at several places of a list.

    Args:
        name: its first name.
        text: what it is, in words.
        places: how many.
        is_fact: whether it mixes the statistics of several depths.
    """

    name: str
    text: str
    places: int
    is_fact: bool


class _Place(NamedTuple):
    """The list that holds a module twice, and the two names of the module."""

    container: str
    first: str
    other: str


@dataclass(frozen=True, kw_only=True)
class LayersAreOne(HealthRule):
    """Several entries of a list of layers are one object with one set of weights, as in `[layer] * n`.

    Layers may share weights on purpose, so that it is information until the loss stands still. A batch norm at several places
    of an `nn.Sequential` is a fact: its running statistics are those of no place, so that the model evaluates what it has not
    trained.
    """

    patience: int = 1
    every_n_steps: int = 5
    family: ClassVar[str] = "facts"
    kind: ClassVar[Kind] = "pattern"
    obstacles: ClassVar[Obstacles] = (no_structure,)
    next_steps: ClassVar[tuple[str, ...]] = (
        "Make each layer anew: `[Layer() for _ in range(n)]`, not `[Layer()] * n`.",
        "If layers share their weights on purpose, give each of them a norm of its own.",
    )
    source: ClassVar[str] = "a definition: one object has several names that differ in an index only"
    consequence: ClassVar[str] = (
        "The model has the parameters of one layer where several were planned, and batch norms mix statistics of several "
        "depths."
    )
    false_alarm: ClassVar[str] = (
        "Sharing weights across depth is a known design. The finding is information until the loss stands still, except for a "
        "batch norm in an `nn.Sequential`."
    )

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        structure = evidence.structure
        if structure is None:
            return
        memo = memo_of(structure)
        if "shared" not in memo:
            memo["shared"] = tuple(_shared(structure))
        for step in evidence.new_steps.tolist():
            for each in memo["shared"]:
                measured = float(each.places)
                yield Symptom(
                    each.name, tensor="", step=step, measured=measured, threshold=1.0, text=each.text, is_fact=each.is_fact
                )


def _shared(structure: Structure) -> Iterable[_Shared]:
    modules = {each.name: each for each in structure.modules}
    places: dict[tuple[str, str], dict[str, None]] = {}  # the other names of each shared module, by its list and its first name
    counts: dict[str, int] = {}  # the parameters of each shared module
    for parameter in structure.parameters:
        found = [each for other in parameter.others if (each := _place_of(parameter.name, other, modules)) is not None]
        for each in found:
            places.setdefault((each.container, each.first), {})[each.other] = None
        for first in {each.first for each in found}:
            counts[first] = counts.get(first, 0) + 1
    for (container, first), others in places.items():
        inside = [each for name, each in modules.items() if name == first or name.startswith(f"{first}.")]
        norms = sum(map(is_batch_norm, inside))
        is_fact = norms > 0 and container in modules and modules[container].type == "Sequential"
        are = "is the same object" if len(others) == 1 else "are the same object"
        text = f"{listed(others)} {are}, so that the {len(others) + 1} layers share {counted(counts[first], 'parameter')}"
        if is_fact:
            mix = "its batch norm mixes" if norms == 1 else f"its {norms} batch norms mix"
            text += f", and {mix} the statistics of {len(others) + 1} depths"
        yield _Shared(first, text, len(others) + 1, is_fact)


def _place_of(name: str, other: str, modules: Container[str]) -> _Place | None:
    """Where a list holds a module twice, by two names of a parameter of it; None if none does."""
    first, second = name.split("."), other.split(".")
    differing = [i for i, (one, two) in enumerate(zip(first, second, strict=False)) if one != two]
    if len(first) != len(second) or len(differing) != 1 or differing[0] == len(first) - 1:
        return None
    at = differing[0]
    if not (first[at].isdigit() and second[at].isdigit()):
        return None
    # A module that has a name of its own is another one, and only something inside of it is shared.
    for end in range(at + 1, len(first)):
        one, two = ".".join(first[:end]), ".".join(second[:end])
        if two not in modules and one in modules:
            return _Place(".".join(first[:at]), one, two)
    return None


RULES: Final[tuple[HealthRule, ...]] = (LayersAreOne(),)
"""The rule on shared layers, with its defaults."""
