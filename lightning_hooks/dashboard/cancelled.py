"""Finds the biases that the norm behind their layer takes away: their gradients are 0, or what rounding left of 0."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from lightning_hooks.dashboard.facts import is_count

_NORM: Final = re.compile(r"(Batch|Instance)Norm")
"""The classes of norms that subtract the mean of each channel, and with it what a bias has added to the channel."""
_BIAS: Final = ".bias"


def cancelled_biases(
    names: Iterable[str], about: Mapping[str, Mapping[str, Any]], structures: Iterable[Any] = ()
) -> frozenset[str]:
    """The biases among some rows whose module is followed by a norm that subtracts the mean of each channel.

    The order in which modules ran says which norm is next, and where it is not known, the order of their definition. Neither
    proves that the norm reads the output of the module, so a reader should also look whether the gradients are near 0.

    Args:
        names: the names of rows.
        about: the facts about rows, by name.
        structures: the structures in the row indices of an event file, unchecked.

    Example:
        >>> about = {"conv": {"type": "Conv2d", "order": 0}, "norm": {"type": "BatchNorm2d", "order": 1}}
        >>> sorted(cancelled_biases(["conv.weight", "conv.bias", "norm.bias"], about))
        ['conv.bias']
    """
    kinds = {name: str(facts.get("type", "")) for name, facts in about.items() if is_count(facts.get("order"))}
    in_turn = sorted(kinds, key=lambda name: int(about[name]["order"]))
    if not in_turn:
        kinds = dict(_modules(structures))
        in_turn = [*kinds]
    holders = {name.rpartition(".")[0] for name in kinds}
    leaves = [name for name in in_turn if name not in holders]
    before_norm = {
        name
        for name, behind in zip(leaves, leaves[1:], strict=False)
        if _NORM.search(kinds[behind]) and not _NORM.search(kinds[name])
    }
    return frozenset(name for name in names if name.endswith(_BIAS) and name.removesuffix(_BIAS) in before_norm)


def _modules(structures: Iterable[Any]) -> Iterable[tuple[str, str]]:
    """The names and the classes of modules, in the order of their definition."""
    for structure in structures:
        modules = structure.get("modules") if isinstance(structure, Mapping) else None
        for each in modules if isinstance(modules, list) else []:
            if isinstance(each, list) and len(each) == 3 and isinstance(each[0], str) and isinstance(each[1], str):
                yield each[0], each[1]
