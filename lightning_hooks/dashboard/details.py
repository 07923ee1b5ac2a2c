"""Describes modules and parameters in a few characters beside their names: `Linear 64→32`, `ReLU`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lightning_hooks.dashboard.facts import is_count


def detail_of(kind: str, weight: Sequence[int] | None) -> str:
    """The class of a module with the sizes that its weight states.

    Args:
        kind: the name of the class.
        weight: the shape of the parameter `weight`; None if the module has none.

    Example:
        >>> detail_of("Linear", [32, 64]), detail_of("Conv2d", [16, 3, 5, 5]), detail_of("ReLU", None)
        ('Linear 64→32', 'Conv2d 16×3×5×5', 'ReLU')
    """
    if not weight or not kind:
        return kind
    if "Linear" in kind and len(weight) == 2:
        outputs, inputs = weight
        return f"{kind} {inputs}→{outputs}"
    return f"{kind} {sizes(weight)}"


def sizes(shape: Iterable[int]) -> str:
    """A shape as text: `64×32`."""
    return "×".join(map(str, shape))


def details(structures: Iterable[Any], about: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """The details of modules that hold no other module, by name.

    Args:
        structures: the structures in the row indices of an event file, unchecked.
        about: the facts about rows, which are used where there is no structure.
    """
    kinds: dict[str, str] = {name: str(facts["type"]) for name, facts in about.items() if "type" in facts and "order" in facts}
    weights: dict[str, list[int]] = {
        name.removesuffix(".weight"): facts["shape"]
        for name, facts in about.items()
        if name.endswith(".weight") and "shape" in facts
    }
    for structure in structures:
        if not isinstance(structure, Mapping):
            continue
        for each in _entries(structure.get("modules"), 3):
            kinds[each[0]] = each[1]
        for name, module, shape, *_ in _entries(structure.get("parameters"), 5):
            if name.rpartition(".")[2] == "weight" and isinstance(shape, list) and all(map(is_count, shape)):
                weights[module] = shape
    holders = {name.rpartition(".")[0] for name in kinds if name}
    return {name: detail_of(kind, weights.get(name)) for name, kind in kinds.items() if name not in holders}


def _entries(value: Any, length: int) -> list[list[Any]]:
    """The lists of a length of which the first two values are texts."""
    entries = [each for each in value if isinstance(each, list) and len(each) == length] if isinstance(value, list) else []
    return [each for each in entries if isinstance(each[0], str) and isinstance(each[1], str)]
