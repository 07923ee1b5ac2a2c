"""The values of an `Encoder`, read from JSON that may come from a stranger: nothing is imported, and no other class is used."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from lightning_hooks.engine.recording.encoder import SEQUENCES
from lightning_hooks.errors import shortened, shown
from lightning_hooks.nested.kinds import slots_of
from lightning_hooks.untrusted import UnreadableError


class Decoder:
    """Turns the JSON of an `Encoder` back into values.

    The JSON is data of somebody else: the decoder imports nothing, and calls no class but those it is given.

    Args:
        tensors: by name.
        classes: the classes of containers that the JSON may name, by their import paths, beside those of `_KNOWN`.

    Attributes:
        notes: how values differ from the saved ones.
        replaced: the import paths of classes that are not given. A plain value with the same attributes stands for each.
    """

    def __init__(self, tensors: Mapping[str, Tensor], classes: Mapping[str, type] | None = None) -> None:
        self.notes: list[str] = []
        self.replaced: list[str] = []
        self._tensors = tensors
        self._classes = {**_KNOWN, **(classes or {})}

    def decode(self, value: Any) -> Any:
        """The value.

        Raises:
            UnreadableError: it is damaged.
        """
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        kind = next(iter(value), "") if isinstance(value, dict) else "list without a kind"
        if kind not in _DECODED:
            raise UnreadableError(f"the saved value is damaged: it has a {shown(kind)}")
        try:
            return _DECODED[kind](self, value)
        except UnreadableError:
            raise
        except Exception as error:
            reason = shortened(f"{type(error).__name__}: {error}", 300)
            raise UnreadableError(f"the saved value is damaged: {reason}") from error

    def _tensor_of(self, value: dict[str, Any]) -> Tensor:
        tensor = self._tensors[value["tensor"]]
        tensor = torch.view_as_complex(tensor) if value.get("complex") else tensor
        return tensor.requires_grad_() if value.get("requires_grad") else tensor

    def _sparse_of(self, value: dict[str, Any]) -> Tensor:
        indices, values = map(self.decode, value["sparse"])
        return torch.sparse_coo_tensor(indices, values, value["shape"], is_coalesced=True, check_invariants=True)

    def _array(self, value: dict[str, Any]) -> np.ndarray[Any, Any]:
        array: np.ndarray[Any, Any] = self.decode(value["array"]).numpy()
        return array

    def _dtype(self, value: dict[str, Any]) -> torch.dtype:
        dtype = getattr(torch, value["dtype"], None)
        if not isinstance(dtype, torch.dtype):
            raise UnreadableError(f"the saved value is damaged: {shown(value['dtype'])} is not a dtype")
        return dtype

    def _dict(self, value: dict[str, Any]) -> Any:
        items = {self.decode(key): self.decode(each) for key, each in value["dict"]}
        if value.get("type") is None:
            return items
        kind: Any = self._class(value["type"], lambda kind: issubclass(kind, Mapping))
        try:
            if kind is None:
                return Attributes(items)
            # The items of an output of Hugging Face's transformers are its fields.
            is_of_fields: bool = dataclasses.is_dataclass(kind)
            return kind(**items) if is_of_fields else kind(items)
        except Exception as error:
            self.notes.append(f"{value['type']} cannot be built of its items ({shortened(str(error), 300)}); it is a dict")
            return items

    def _namedtuple(self, value: dict[str, Any]) -> Any:
        fields = {name: self.decode(each) for name, each in value["fields"].items()}
        path = value["namedtuple"]
        kind: Any = self._class(path, lambda kind: issubclass(kind, tuple) and hasattr(kind, "_make"))
        return (kind or namedtuple(path.rpartition(".")[2], list(fields)))(**fields)

    def _dataclass(self, value: dict[str, Any]) -> Any:
        fields = {name: self.decode(each) for name, each in value["fields"].items()}
        kind: Any = self._class(value["dataclass"], dataclasses.is_dataclass)
        if kind is None:
            return SimpleNamespace(**fields)
        own = {field.name for field in dataclasses.fields(kind)}
        # `__post_init__` has changed the fields already.
        instance: Any = object.__new__(kind)
        for name, each in fields.items():
            if name not in own:
                raise UnreadableError(f"the saved value is damaged: {value['dataclass']} has no field {shown(name)}")
            object.__setattr__(instance, name, each)
        return instance

    def _sequence(self, base: Any, value: dict[str, Any]) -> Any:
        items = base(map(self.decode, value[base.__name__]))
        if value.get("type") is None:
            return items
        kind: Any = self._class(value["type"], lambda kind: issubclass(kind, base))
        if kind is None or kind in _KNOWN.values():
            return items if kind is None else kind(items)
        if base is tuple:
            return tuple.__new__(kind, items)
        filled: Any = base.__new__(kind)
        (base.update if base is set else base.extend)(filled, items)
        return filled

    def _object(self, value: dict[str, Any]) -> Any:
        fields = {name: self.decode(each) for name, each in value["fields"].items()}
        # A class with a finalizer would run it on attributes that a stranger chose.
        kind: Any = self._class(value["object"], lambda kind: not hasattr(kind, "__del__"))
        if kind is None:
            return AttributesOfObject(**fields)
        instance = object.__new__(kind)
        slots = {slot.__name__: slot for slot in slots_of(kind)}
        for name, each in fields.items():
            if name in slots:
                slots[name].__set__(instance, each)
            else:
                vars(instance)[name] = each
        return instance

    def _lost(self, value: dict[str, Any]) -> None:
        self.notes.append(f"a {value['lost']} was not saved; it is None")

    def _class(self, path: str, fits: Callable[[type], bool]) -> type | None:
        """The given class of an import path; None if there is none of the right kind."""
        kind = self._classes.get(path)
        if kind is not None and fits(kind):
            return kind
        if path not in self.replaced:
            self.replaced.append(path)
        return None


class Attributes(dict[Any, Any]):
    """A dictionary whose items are also attributes, as in the batches of most libraries; it stands for one of their classes."""

    def __getattr__(self, name: str) -> Any:
        """The item of that name."""
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the saved mapping has no {name!r}") from None


class AttributesOfObject(SimpleNamespace):
    """An object with the saved attributes; it stands for one of a class that is not given.

    The items of its mappings can be read as its own, as those of the batches of graph libraries.
    """

    def __getattr__(self, name: str) -> Any:
        """The item of that name of one of the mappings."""
        for each in vars(self).values():
            if isinstance(each, Mapping) and name in each:
                return each[name]
            if isinstance(each, AttributesOfObject) and hasattr(each, name):
                return getattr(each, name)
        raise AttributeError(f"the saved object has no {name!r}")

    def __getitem__(self, name: str) -> Any:
        """The attribute or item of that name."""
        try:
            return getattr(self, name)
        except (AttributeError, TypeError):
            raise KeyError(name) from None


_KNOWN: Final[Mapping[str, type]] = {
    "collections.OrderedDict": OrderedDict,
    "torch.nn.utils.rnn.PackedSequence": PackedSequence,
    "torch.Size": torch.Size,
}
"""Containers of Python and torch that hold what they are given, and run nothing else."""


def _sequence_of(base: Any, decoder: Decoder, value: dict[str, Any]) -> Any:
    return decoder._sequence(base, value)


_DECODED: Final[Mapping[str, Callable[[Decoder, dict[str, Any]], Any]]] = {
    "float": lambda decoder, value: float(value["float"]),
    "tensor": Decoder._tensor_of,
    "sparse": Decoder._sparse_of,
    "array": Decoder._array,
    "bytes": lambda decoder, value: bytes.fromhex(value["bytes"]),
    "dtype": Decoder._dtype,
    "device": lambda decoder, value: torch.device(value["device"]),
    "dict": Decoder._dict,
    "namedtuple": Decoder._namedtuple,
    "dataclass": Decoder._dataclass,
    "object": Decoder._object,
    **{kind.__name__: partial(_sequence_of, kind) for kind in SEQUENCES},
    "lost": Decoder._lost,
}
