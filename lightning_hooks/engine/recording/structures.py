"""Nested values with tensors as JSON: the tensors go to a file of their own, by name."""

from __future__ import annotations

import dataclasses
import math
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from lightning_hooks.engine.recording.tensor_file import DTYPES, METADATA
from lightning_hooks.errors import shortened, shown
from lightning_hooks.tensor_kinds import is_dense, with_memory
from lightning_hooks.untrusted import UnreadableError

_DEPTH: Final = 16


class Encoder:
    """Turns nested values into JSON and named tensors.

    A value that JSON has is itself; each other is a mapping of one kind of value to its content, such as `{"tuple": […]}`.

    Attributes:
        tensors: the tensors by name, in host memory, each with memory of its own.
        notes: what could not be encoded.
    """

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.notes: list[str] = []

    def encode(self, value: Any, name: str, depth: int = _DEPTH) -> Any:
        """The JSON of a value.

        Args:
            value: tensors, arrays, numbers, strings, and containers of these.
            name: of the value; the names of the tensors in it begin with it.
            depth: how many containers may be nested.
        """
        if value is None or isinstance(value, (bool, str)) or type(value) is int:
            return value
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else {"float": str(float(value))}
        if isinstance(value, Tensor):
            return self._tensor(value, name)
        if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
            return {"array": self._tensor(torch.from_numpy(np.ascontiguousarray(value).copy()), name)}
        if isinstance(value, np.generic) and value.dtype.kind in "biuf":
            return self.encode(value.item(), name)
        if isinstance(value, bytes):
            return {"bytes": value.hex()}
        if isinstance(value, (torch.dtype, torch.device)):
            return {type(value).__name__: str(value).removeprefix("torch.")}
        if depth:
            return self._container(value, name, depth - 1)
        return self._lost(value, name)

    def _container(self, value: Any, name: str, depth: int) -> Any:
        def each(inner: Any, key: object) -> Any:
            return self.encode(inner, f"{name}.{key}" if name else str(key), depth)

        if isinstance(value, Mapping):
            # A key is encoded without tensors: its own encoder has none.
            items = [[Encoder().encode(key, "key"), each(inner, key)] for key, inner in value.items()]
            return {"dict": items} if type(value) is dict else {"dict": items, "type": _path(type(value))}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return {"namedtuple": _path(type(value)), "fields": {key: each(getattr(value, key), key) for key in value._fields}}
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            names = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
            return {"dataclass": _path(type(value)), "fields": {key: each(getattr(value, key), key) for key in names}}
        for kind in (list, tuple, set):
            if isinstance(value, kind):
                return {kind.__name__: [each(inner, i) for i, inner in enumerate(value)]}
        return self._lost(value, name)

    def _tensor(self, tensor: Tensor, name: str) -> Any:
        if tensor.layout is torch.sparse_coo:
            coalesced = tensor.detach().coalesce()
            parts = [self._tensor(coalesced.indices(), f"{name}.indices"), self._tensor(coalesced.values(), f"{name}.values")]
            return {"sparse": parts, "shape": list(tensor.shape)}
        with torch.no_grad():
            plain = with_memory(tensor.detach())
            if not is_dense(plain):
                return self._lost(tensor, name)
            is_complex = plain.is_complex()
            dense = torch.view_as_real(plain.resolve_conj()) if is_complex else plain
            if dense.dtype not in DTYPES.values():
                return self._lost(tensor, name)
            copy = dense.resolve_neg().to("cpu", copy=True).contiguous()
        key = name
        while key in self.tensors or key == METADATA:
            key += "'"
        self.tensors[key] = copy
        encoded: dict[str, Any] = {"tensor": key}
        if is_complex:
            encoded["complex"] = True
        if tensor.requires_grad:
            encoded["requires_grad"] = True
        return encoded

    def _lost(self, value: Any, name: str) -> Any:
        self.notes.append(f"{name} is a {_path(type(value))}, which cannot be saved")
        return {"lost": _path(type(value))}


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
            return Attributes(items) if kind is None else kind(items)
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


_KNOWN: Final[Mapping[str, type]] = {
    "collections.OrderedDict": OrderedDict,
    "torch.nn.utils.rnn.PackedSequence": PackedSequence,
}
"""Containers of Python and torch that hold what they are given, and run nothing else."""
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
    "list": lambda decoder, value: list(map(decoder.decode, value["list"])),
    "tuple": lambda decoder, value: tuple(map(decoder.decode, value["tuple"])),
    "set": lambda decoder, value: set(map(decoder.decode, value["set"])),
    "lost": Decoder._lost,
}


def _path(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
