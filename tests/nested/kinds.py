"""One class of each kind of batch that a data loader may give."""

from __future__ import annotations

import collections
import types
import weakref
from collections import namedtuple
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_sequence

Pair = namedtuple("Pair", "first second")


@dataclass
class Sample:
    image: Any
    label: Any = None
    unset: Any = field(init=False)


@dataclass(frozen=True, slots=True)
class FrozenSample:
    image: Any


@dataclass
class ModelOutput(collections.OrderedDict[str, Any]):
    """An output whose fields are also its items, as in Hugging Face's transformers."""

    loss: Any = None
    logits: Any = None

    def __post_init__(self) -> None:
        for name in ("loss", "logits"):
            self[name] = getattr(self, name)

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        object.__setattr__(self, key, value)


class BatchEncoding(collections.UserDict[str, Any]):
    """What a tokenizer returns."""


class Boxes(list[Any]):
    """A list of a class of its own."""


class Shape(tuple[Any, ...]):
    """A tuple of a class of its own."""


class Storage(MutableMapping[str, Any]):
    """The mapping in which a batch of PyTorch Geometric keeps its tensors: it knows the batch."""

    def __init__(self, parent: Data, items: dict[str, Any]) -> None:
        self._mapping, self._parent = items, weakref.ref(parent)

    def __copy__(self) -> Storage:
        copy = Storage.__new__(Storage)
        vars(copy).update({**vars(self), "_mapping": dict(self._mapping)})
        return copy

    def __getitem__(self, key: str) -> Any:
        return self._mapping[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._mapping[key] = value

    def __delitem__(self, key: str) -> None:
        del self._mapping[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._mapping)

    def __len__(self) -> int:
        return len(self._mapping)


class Data:
    """A batch of PyTorch Geometric: an object whose tensors are in its storage, and read as its attributes."""

    def __init__(self, **items: Any) -> None:
        self.__dict__["_store"] = Storage(self, items)

    def __getattr__(self, name: str) -> Any:
        if "_store" not in self.__dict__:
            raise AttributeError(name)
        return self._store[name]

    def __copy__(self) -> Data:
        copy = Data.__new__(Data)
        vars(copy)["_store"] = self._store.__copy__()
        vars(vars(copy)["_store"])["_parent"] = weakref.ref(copy)
        return copy


class Instances:
    """A batch whose tensors are attributes."""

    def __init__(self, boxes: Any, name: str = "a", dataset: Any = None) -> None:
        self.boxes, self.name, self.dataset = boxes, name, dataset


class Slotted:
    """An object without a dictionary of attributes."""

    __slots__ = ("boxes", "unset")

    def __init__(self, boxes: Any) -> None:
        self.boxes = boxes


class Kind(NamedTuple):
    """One kind of nest around something.

    Args:
        make: the nest around a value.
        name: the expression of the value in the nest, without the name of the nest.
        in_calls: whether the value is also found in the arguments and the result of a module.
    """

    make: Callable[[Any], Any]
    name: str
    in_calls: bool = True


KINDS: dict[str, Kind] = {
    "dict": Kind(lambda value: {"x": value, "n": 3}, "['x']"),
    "OrderedDict": Kind(lambda value: collections.OrderedDict(x=value), "['x']"),
    "defaultdict": Kind(lambda value: collections.defaultdict(list, x=value), "['x']"),
    "UserDict, as BatchEncoding": Kind(lambda value: BatchEncoding(x=value), "['x']"),
    "mapping proxy": Kind(lambda value: types.MappingProxyType({"x": value}), "['x']"),
    "list": Kind(lambda value: ["text", value], "[1]"),
    "tuple": Kind(lambda value: (None, value), "[1]"),
    "deque": Kind(lambda value: collections.deque([value]), "[0]"),
    "class of a list": Kind(lambda value: Boxes([value]), "[0]"),
    "class of a tuple": Kind(lambda value: Shape([value]), "[0]"),
    "named tuple": Kind(lambda value: Pair(1, value), ".second"),
    "dataclass": Kind(lambda value: Sample(value, [2]), ".image"),
    "frozen dataclass with slots": Kind(FrozenSample, ".image"),
    "ModelOutput": Kind(lambda value: ModelOutput(logits=value), "['logits']"),
    "object": Kind(Instances, ".boxes", in_calls=False),
    "object with slots": Kind(Slotted, ".boxes", in_calls=False),
    "object with a storage, as Data": Kind(lambda value: Data(x=value), "._store._mapping['x']", in_calls=False),
}
CLASSES: dict[str, type] = {
    f"{__name__}.{kind.__qualname__}": kind
    for kind in (Pair, Sample, FrozenSample, ModelOutput, BatchEncoding, Boxes, Shape, Storage, Data, Instances, Slotted)
}


def packed() -> Any:
    return pack_sequence([torch.ones(2), torch.zeros(1)])


def one() -> Tensor:
    return torch.ones(2)
