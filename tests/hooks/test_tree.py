"""Nests with their tensors replaced: everything else that an output has stays, and the output itself is not changed."""

from __future__ import annotations

import collections
import dataclasses
import types
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from functools import cached_property
from typing import Any

import pytest
import torch
from torch import Tensor

from lightning_hooks.hooks.tree import map_tensors, tensors_in


@dataclasses.dataclass
class Out:
    logits: Tensor
    scale: dataclasses.InitVar[int]
    aux: Any = dataclasses.field(default=None, init=False)
    unset: Any = dataclasses.field(init=False)

    def __post_init__(self, scale: int) -> None:
        self.aux = [self.logits * scale]
        self.note = "kept"


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    logits: Tensor
    aux: Any = dataclasses.field(default=None, init=False)


class Named(dict[str, Any]):
    def __init__(self, name: str, logits: Tensor) -> None:
        super().__init__(logits=logits)
        self.name = name


@dataclasses.dataclass
class ModelOutput(collections.OrderedDict[str, Any]):
    """Fields are items too, as those of transformers."""

    logits: Any
    states: Any = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            self[field.name] = getattr(self, field.name)

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        object.__setattr__(self, key, value)


class Bag(MutableMapping[str, Any]):
    """A shallow copy of it has the same items."""

    def __init__(self, items: dict[str, Any]) -> None:
        self.inner = dict(items)

    def __getitem__(self, key: str) -> Any:
        return self.inner[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self.inner[key] = value

    def __delitem__(self, key: str) -> None:
        del self.inner[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.inner)

    def __len__(self) -> int:
        return len(self.inner)


@dataclasses.dataclass
class Fields(Mapping[str, Any]):
    """A mapping of its fields."""

    logits: Tensor
    aux: Any = None

    def __getitem__(self, key: str) -> Any:
        return getattr(self, key)

    def __iter__(self) -> Iterator[str]:
        return iter(("logits", "aux"))

    def __len__(self) -> int:
        return 2

    @cached_property
    def doubled(self) -> Tensor:
        return self.logits * 2


def fields_with_a_cache() -> Fields:
    out = Fields(torch.ones(1) / 2)
    assert out.doubled.item() == 1.0
    return out


def frozen() -> Frozen:
    out = Frozen(torch.ones(1))
    object.__setattr__(out, "aux", (torch.ones(1), "kept"))
    return out


CASES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "fields set in the forward": (
        lambda: Out(torch.ones(1), 3),
        lambda out: (out.logits, out.aux, out.note, hasattr(out, "unset")),
    ),
    "a frozen one with slots": (frozen, lambda out: (out.logits, out.aux)),
    "attributes of a dictionary": (lambda: Named("kept", torch.ones(1)), lambda out: (out["logits"], out.name)),
    "fields that are items": (
        lambda: ModelOutput(torch.ones(1), (torch.ones(1),)),
        lambda out: (out["logits"] is out.logits, out["states"] is out.states, list(out), out.logits, out.states),
    ),
    "the default of a dictionary": (
        lambda: collections.defaultdict(list, logits=torch.ones(1)),
        lambda out: (out["logits"], out.default_factory),
    ),
    "a mapping whose copy shares its items": (lambda: Bag({"logits": torch.ones(1)}), lambda out: out.inner),
    "a mapping that cannot be set": (lambda: types.MappingProxyType({"logits": torch.ones(1)}), dict),
}


@pytest.mark.parametrize("case", CASES)
def test_everything_but_the_tensors_stays(case: str) -> None:
    make, parts = CASES[case]
    given = make()
    new = map_tensors(lambda tensor: tensor + 1, given)
    assert type(new) is type(given) and repr(parts(given)) == repr(parts(make()))
    assert repr(parts(new)) == repr(parts(make())).replace("3.", "4.").replace("1.", "2.")


def test_a_field_that_is_an_item_is_changed_once_and_what_was_computed_from_it_is_computed_again() -> None:
    changed: list[Tensor] = []
    map_tensors(lambda tensor: changed.append(tensor) or tensor, ModelOutput(torch.ones(1)))
    assert len(changed) == 1
    new = map_tensors(lambda tensor: tensor + 1, fields_with_a_cache())
    assert (new.logits.item(), new.aux, new.doubled.item()) == (1.5, None, 3.0)


@dataclasses.dataclass(eq=False)
class Node:
    value: Tensor
    others: Any = None


def test_objects_that_hold_each_other_are_searched_once() -> None:
    parent, shared = Node(torch.ones(1)), Node(torch.ones(3))
    child = Node(torch.ones(2), {"parent": parent, "shared": shared})
    parent.others = types.MappingProxyType({"child": child, "shared": shared})
    assert [len(tensor) for tensor in tensors_in([parent])] == [1, 2, 3, 3]
