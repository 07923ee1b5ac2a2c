"""Tensors in a file of the safetensors format: a header of JSON, then the elements. Any safetensors library reads it.

The file is data alone, so a record of a stranger can be read: no pickle, and each number in the header is checked against the
size of the file.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

import torch
from torch import Tensor

from lightning_hooks.errors import shown
from lightning_hooks.untrusted import UnreadableError, open_regular, parse_json
from lightning_hooks.whole_files import write_whole

DTYPES: Final[Mapping[str, torch.dtype]] = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "U16": torch.uint16,
    "I16": torch.int16,
    "U32": torch.uint32,
    "I32": torch.int32,
    "U64": torch.uint64,
    "I64": torch.int64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}
"""The dtypes of the format by their names in it."""
METADATA: Final = "__metadata__"
"""A name in the header that is not one of a tensor."""
_NAMES: Final = {dtype: name for name, dtype in DTYPES.items()}
_LENGTH: Final = 8  # bytes of the length of the header
_MAX_HEADER: Final = 100_000_000  # bytes, as in the library
_MAX_DIMS: Final = 64


def write_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write tensors to a file, in one piece.

    Args:
        tensors: by name; dense and contiguous, in host memory, of a dtype in `DTYPES`.
        path: of the file.

    Raises:
        OSError: the file cannot be written.
    """
    header: dict[str, Any] = {}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.nbytes
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _LENGTH)  # The elements begin at a multiple of eight bytes.
    write_whole(path, len(text).to_bytes(_LENGTH, "little"), text, *map(_bytes_of, tensors.values()))


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file, in host memory.

    Raises:
        UnreadableError: the file is missing, is not a regular file, or is damaged; the message names it.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     write_tensors({"x": torch.ones(2)}, Path(folder, "batch.safetensors"))
        ...     read_tensors(Path(folder, "batch.safetensors"))
        {'x': tensor([1., 1.])}
    """
    with open_regular(path) as file:
        try:
            return _read(file, os.fstat(file.fileno()).st_size)
        except UnreadableError as error:
            raise UnreadableError(f"{path.name} is damaged: {error}") from error
        except (OSError, RuntimeError, MemoryError) as error:
            raise UnreadableError(f"{path.name} cannot be read: {error}") from error


def _read(file: BinaryIO, size: int) -> dict[str, Tensor]:
    length = int.from_bytes(file.read(_LENGTH), "little")
    if size < _LENGTH or length > min(size - _LENGTH, _MAX_HEADER):
        raise UnreadableError(f"its header of {length} bytes does not fit into {size} bytes")
    header = parse_json(file.read(length), depth=3)
    if not isinstance(header, dict):
        raise UnreadableError(f"its header must be an object, got {shown(header)}")
    header.pop(METADATA, None)
    parts = [(*_described(name, saved), name) for name, saved in header.items()]
    tensors: dict[str, Tensor] = {}
    position = 0
    for begin, end, dtype, shape, name in sorted(parts, key=lambda part: part[:2]):
        if begin != position:
            raise UnreadableError(f"{shown(name)} begins at byte {begin}, and the tensor before it ends at {position}")
        if end > size - _LENGTH - length:
            raise UnreadableError(f"the file ends before {shown(name)} does")
        tensors[name] = _tensor(file, dtype, shape, name)
        position = end
    if position != size - _LENGTH - length:
        raise UnreadableError(f"its tensors have {position} bytes, and the file {size - _LENGTH - length}")
    return {name: tensors[name] for name in header}


def _described(name: str, saved: Any) -> tuple[int, int, torch.dtype, tuple[int, ...]]:
    """Where a tensor begins and ends, its dtype and its shape."""
    match saved:
        case {"dtype": str(code), "shape": list(shape), "data_offsets": [begin, end]} if (
            code in DTYPES and len(shape) <= _MAX_DIMS and all(type(each) is int and each >= 0 for each in (*shape, begin, end))
        ):
            if end - begin == math.prod(shape) * DTYPES[code].itemsize:
                return begin, end, DTYPES[code], tuple(shape)
    raise UnreadableError(f"{shown(name)} cannot be described by {shown(saved)}")


def _tensor(file: BinaryIO, dtype: torch.dtype, shape: tuple[int, ...], name: str) -> Tensor:
    tensor = torch.empty(shape, dtype=dtype)
    elements = _bytes_of(tensor)
    position = 0
    while position < len(elements):
        read = file.readinto(elements[position:])  # type: ignore[attr-defined]  # a buffered reader has it
        if not read:
            raise UnreadableError(f"the file ends before {shown(name)} does")
        position += read
    if dtype is torch.bool and tensor.numel() and int(tensor.view(torch.uint8).max()) > 1:
        raise UnreadableError(f"{shown(name)} has truth values other than 0 and 1")
    return tensor


def _bytes_of(tensor: Tensor) -> memoryview:
    """The elements of a contiguous tensor, which share its memory."""
    elements: Any = tensor.reshape(-1).view(torch.uint8).numpy()
    return memoryview(elements)
