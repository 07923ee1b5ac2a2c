"""Looks for parameters that were tied, or are meant to be, and that are trained as two."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import ClassVar, Final, NamedTuple

import torch
from torch import Tensor, nn

from lightning_hooks.engine.lookouts.declared_ties import declared_ties
from lightning_hooks.engine.lookouts.surroundings import Surroundings
from lightning_hooks.engine.participants.facts import role_of
from lightning_hooks.engine.participants.lookout import Lookout
from lightning_hooks.records.facts import Sighting
from lightning_hooks.rules.patterns import Target, named_parameters
from lightning_hooks.stats.host_copy import HostCopy, begin_copy

KIND: Final = "tie-broken"
STEPS: Final = 12
"""The number of first steps at which something is looked at."""
_LEAST: Final = 64
"""The number of elements of a table; a smaller one may be equal to another by chance."""


class _Copy(NamedTuple):
    """The weight of a head that may have begun as a copy of an embedding.

    Args:
        head: its name.
        table: the name of the embedding.
        is_equal: whether all numbers are the same, which a device may not have computed yet; None if both have one memory.
    """

    head: str
    table: str
    is_equal: HostCopy | None


class TiesLookout(Lookout):
    """Looks at the first step for parameters that are two where the code says that they are one, or that began as one.

    The weight of a head that has the numbers of an embedding is compared with it once. A device compares without being waited
    for, and its answer is read when it is there.
    """

    kinds: ClassVar[tuple[str, ...]] = (KIND,)

    def __init__(self, surroundings: Surroundings) -> None:
        self._around = surroundings
        self._looked = 0
        self._declared: tuple[Sighting, ...] = ()
        self._copies: list[_Copy] = []

    def step_key(self, step: int, stage: str) -> Hashable | None:
        return "ties" if stage == "train" and self._looked < STEPS else None

    def begin_step(self, step: int, stage: str, reporting: bool) -> None:
        model = self._around.model()
        if not self._looked and model is not None:
            self._look(model)
        self._looked += 1

    def _look(self, model: nn.Module) -> None:
        trained = [each for each in named_parameters(model) if each.value.requires_grad and type(each.value) is nn.Parameter]
        by_id = {id(each.value): each for each in trained}
        seen: set[frozenset[int]] = set()
        declared = []
        for tie in declared_ties(model):
            first, second = by_id.get(id(tie.first)), by_id.get(id(tie.second))
            pair = frozenset({id(tie.first), id(tie.second)})
            if first is None or second is None or first is second or pair in seen or first.value.shape != second.value.shape:
                continue
            seen.add(pair)
            text = f"{tie.by} ties it to {second.name}, but the two are different parameters now, and each is trained alone"
            declared.append(Sighting(KIND, text, (first.name,), tie.line))
        self._declared = tuple(declared)
        self._copies = [*_copies(trained, seen)]

    def sightings(self) -> tuple[Sighting, ...]:
        return *self._declared, *(_sighting(each) for each in self._copies if _is_shown(each))


def _copies(trained: list[Target[nn.Parameter]], seen: set[frozenset[int]]) -> Iterator[_Copy]:
    tables = [each for each in trained if role_of(each.owner) == "embedding" and each.value.dim() == 2]
    heads = [each for each in trained if role_of(each.owner) == "linear" and each.value.dim() == 2]
    for head in heads:
        for table in tables:
            one, other = head.value.detach(), table.value.detach()
            if frozenset({id(head.value), id(table.value)}) in seen or not _are_alike(one, other):
                continue
            is_one_memory = one.data_ptr() == other.data_ptr() != 0
            yield _Copy(head.name, table.name, None if is_one_memory else begin_copy((one == other).all()))


def _are_alike(one: Tensor, other: Tensor) -> bool:
    same_kind = one.shape == other.shape and one.dtype == other.dtype and one.device == other.device
    return same_kind and one.numel() >= _LEAST and one.device.type in ("cpu", "cuda") and not torch.compiler.is_compiling()


def _is_shown(copy: _Copy) -> bool:
    return copy.is_equal is None or (copy.is_equal.has_arrived and bool(copy.is_equal.wait()))


def _sighting(copy: _Copy) -> Sighting:
    if copy.is_equal is None:
        text = (
            f"it shares its memory with {copy.table} but is a parameter of its own, so that an optimizer changes the same "
            "numbers twice in each step"
        )
    else:
        text = f"it began as a copy of {copy.table}, number for number, and each of the two is trained alone"
    return Sighting(KIND, text, (copy.head,), is_fact=False)


LOOKOUTS: Final[tuple[type[Lookout], ...]] = (TiesLookout,)
"""The lookouts of this file."""
