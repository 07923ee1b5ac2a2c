"""Replacing tensors in a nest keeps all other attributes and items, and does not change the original nest."""

from __future__ import annotations

import collections
import dataclasses
import types
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

import pytest
import torch
from torch import Tensor

from lightning_hooks.hooks.parts import described, part_of
from lightning_hooks.nested.rebuilding import map_tensors
from lightning_hooks.nested.tensors import tensors_in


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
    """An output whose fields are also its items, as in Hugging Face's transformers."""

    logits: Any
    states: Any = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            self[field.name] = getattr(self, field.name)

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        object.__setattr__(self, key, value)


class Batch(collections.UserDict[str, Any]):
    """A `UserDict`, as tokenizers return."""

    def __init__(self, items: dict[str, Any], name: str) -> None:
        super().__init__(items)
        self.name = name


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
    "a mapping around a dictionary": (lambda: Batch({"logits": torch.ones(1)}, "kept"), lambda out: (out.data, out.name)),
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


class Lazy(Mapping[str, Tensor]):
    """A mapping that computes an item whenever it is read."""

    reads = 0

    def __getitem__(self, key: str) -> Tensor:
        type(self).reads += 1
        if key not in ("image", 0):
            raise KeyError(key)
        return torch.rand(2)

    def __iter__(self) -> Iterator[str]:
        return iter(["image"])

    def __len__(self) -> int:
        return 1


class LazyDict(dict[str, Any]):
    reads = 0

    def __getitem__(self, key: Any) -> Tensor:
        type(self).reads += 1
        return torch.rand(2)

    def get(self, key: Any, default: Any = None) -> Any:
        return self[key]

    def values(self) -> Any:
        return [self[key] for key in self]

    def items(self) -> Any:
        return [(key, self[key]) for key in self]


class LazyBatch(collections.UserDict[str, Any]):
    reads = 0

    def __getitem__(self, key: Any) -> Tensor:
        type(self).reads += 1
        return torch.rand(2)


@pytest.mark.parametrize(
    "make",
    [
        Lazy,
        lambda: types.MappingProxyType(Lazy()),
        lambda: LazyDict(image=None),
        lambda: types.MappingProxyType(LazyDict(image=None)),
        lambda: LazyBatch(image=None),
    ],
    ids=["mapping", "proxy", "dict", "proxy of a dict", "UserDict"],
)
def test_the_items_of_a_mapping_that_computes_them_are_never_read(make: Callable[[], Any]) -> None:
    kinds: list[Any] = [Lazy, LazyDict, LazyBatch]
    for kind in kinds:
        kind.reads = 0
    given, state = make(), torch.get_rng_state()
    assert list(tensors_in([given])) == []
    assert type(map_tensors(torch.neg, given)) is type(given)
    assert isinstance(part_of(given, ".image"), (tuple, type(None))) and isinstance(part_of(given, "[0]"), tuple)
    described(given)
    assert [kind.reads for kind in kinds] == [0, 0, 0] and torch.equal(torch.get_rng_state(), state)


class Registered(Lazy):
    def __getitem__(self, key: str) -> Tensor:
        return torch.ones(1)


def test_the_items_of_a_mapping_that_is_registered_with_pytree_are_read() -> None:
    pytree = pytest.importorskip("torch.utils._pytree")
    pytree.register_pytree_node(Registered, lambda node: ([node["image"]], None), lambda items, context: Registered())
    assert len(list(tensors_in(Registered()))) == 1
    assert part_of(Registered(), ".image").item() == 1
    assert described(Registered()) == "a Registered with 'image'"


def cycle_of_list() -> Any:
    nest: list[Any] = [torch.ones(1)]
    nest.append((nest, torch.ones(2)))
    return nest


def cycle_of_dict() -> Any:
    nest: dict[str, Any] = {"a": torch.ones(1)}
    nest |= {"self": nest, "b": [torch.ones(2), {"back": nest}]}
    return nest


def cycle_of_others() -> Any:
    nest = collections.deque([torch.ones(1)], maxlen=5)
    holder = collections.OrderedDict(back=nest, b=torch.ones(2))
    nest.append(holder)  # type: ignore[arg-type]
    return nest


@pytest.mark.parametrize("make", [cycle_of_list, cycle_of_dict, cycle_of_others], ids=["list", "dict", "others"])
def test_a_container_that_holds_itself_is_searched_once_and_so_is_its_copy(make: Callable[[], Any]) -> None:
    given = make()
    assert [len(tensor) for tensor in tensors_in(given)] == [1, 2]
    new = map_tensors(lambda tensor: tensor + 1, given)
    assert type(new) is type(given) and new is not given
    assert [tensor.tolist() for tensor in tensors_in(new)] == [[2], [2, 2]]
    assert [tensor.tolist() for tensor in tensors_in(given)] == [[1], [1, 1]]


def test_a_container_that_holds_only_itself_has_no_tensors() -> None:
    nest: list[Any] = []
    nest.append(nest)
    assert list(tensors_in(nest)) == []
    described(nest)


def test_copies_of_objects_that_hold_each_other_hold_each_other() -> None:
    parent = Node(torch.ones(1))
    parent.others = [Node(torch.ones(2), types.MappingProxyType({"parent": parent}))]
    new = map_tensors(lambda tensor: tensor + 1, parent)
    assert new is not parent and new.others[0].others["parent"] is new
    assert (new.value.item(), new.others[0].value.tolist()) == (2, [2, 2])


def test_a_nest_deeper_than_the_stack_is_searched() -> None:
    nest: Any = torch.ones(1)
    for _ in range(5000):
        nest = [nest]
    assert len(list(tensors_in(nest))) == 1
