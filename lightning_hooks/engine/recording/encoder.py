"""Nested values with tensors as JSON: the tensors go to a file of their own, by name."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from lightning_hooks.engine.recording.tensor_file import DTYPES, METADATA
from lightning_hooks.nested.kinds import attributes_of, fields_of, is_named_tuple, is_object, parts_of, stored_items
from lightning_hooks.nested.tensors import named_tensors
from lightning_hooks.tensor_kinds import is_dense, with_memory

_DEPTH: Final = 16
SEQUENCES: Final[tuple[Any, ...]] = (list, tuple, set, deque)


class Encoder:
    """Turns nested values into JSON and named tensors.

    A value that JSON has stays as it is. Each other value becomes a mapping of its kind to its content, such as
    `{"tuple": […]}`.

    Attributes:
        tensors: the tensors by name, in host memory, each with memory of its own.
        notes: what could not be encoded.
    """

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.notes: list[str] = []
        self._outer: list[Any] = []  # the containers around the value that is encoded

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
        if any(value is outer for outer in self._outer):
            return self._lost(value, name, "holds itself there and cannot be saved")
        self._outer.append(value)
        try:
            return self._opened(value, name, depth)
        finally:
            self._outer.pop()

    def _opened(self, value: Any, name: str, depth: int) -> Any:
        def each(inner: Any, key: object) -> Any:
            return self.encode(inner, f"{name}.{key}" if name else str(key), depth)

        stored = stored_items(value) if isinstance(value, Mapping) else None
        if stored is not None:
            # A key holds no tensors, so the tensors of the encoder for keys are dropped.
            items = [[Encoder().encode(key, "key"), each(inner, key)] for key, inner in stored.items()]
            return {"dict": items} if type(value) is dict else {"dict": items, "type": _path(type(value))}
        if is_named_tuple(value):
            return {"namedtuple": _path(type(value)), "fields": {key: each(getattr(value, key), key) for key in value._fields}}
        fields = fields_of(value)
        if fields is not None:
            return {"dataclass": _path(type(value)), "fields": {key: each(inner, key) for key, inner in fields.items()}}
        for kind in SEQUENCES:
            if isinstance(value, kind):
                encoded = {kind.__name__: [each(inner, i) for i, inner in enumerate(kind.__iter__(value))]}
                return encoded if type(value) is kind else {**encoded, "type": _path(type(value))}
        if is_object(value) and any(True for _ in named_tensors(value)):
            return {"object": _path(type(value)), "fields": self._attributes(value, name, each)}
        return self._lost(value, name)

    def _attributes(self, value: Any, name: str, each: Callable[[Any, object], Any]) -> dict[str, Any]:
        """The attributes of an object; those that are not saved are named in a note and absent."""
        parts = parts_of(value)
        names = () if parts is None else parts.names
        encoded: dict[str, Any] = {}
        for key, inner in attributes_of(value).items():
            if f".{key}" not in names and is_object(inner) and parts_of(inner) is not None:
                self._lost(inner, f"{name}.{key}" if name else key, "is no part of the batch and is not saved")
                continue
            encoded[key] = each(inner, key)
        return {key: inner for key, inner in encoded.items() if not (isinstance(inner, dict) and "lost" in inner)}

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

    def _lost(self, value: Any, name: str, why: str = "cannot be saved") -> Any:
        self.notes.append(f"{name} is a {_path(type(value))}, which {why}")
        return {"lost": _path(type(value))}


def _path(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
