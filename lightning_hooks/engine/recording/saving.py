"""The files beside a flight record, from which its step is replayed: batch, weights, optimizers, generators.

Each is a file of JSON with the structure, and a file of safetensors with the tensors, which the JSON names. All are written in
one piece. The files that are read may come from a stranger: they are data, name no file outside their folder, and run no code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_hooks.engine.recording.decoder import Decoder
from lightning_hooks.engine.recording.encoder import Encoder
from lightning_hooks.engine.recording.tensor_file import read_tensors, write_tensors
from lightning_hooks.errors import RuleError, shortened, shown
from lightning_hooks.snapshot.generators import Generators
from lightning_hooks.untrusted import UnreadableError, path_inside, read_json
from lightning_hooks.whole_files import write_whole

FORMAT: Final = 1
"""The version of these files. A reader accepts this number and lower ones."""
MAX_BYTES: Final = 256_000_000
"""The limit of a file of JSON; files of tensors have none."""


class Saved(NamedTuple):
    """The result of saving a batch, weights or another part of a record.

    Args:
        file: the name of the file of JSON, for `FlightRecord.files`.
        notes: which values could not be saved, and why.
    """

    file: str
    notes: tuple[str, ...] = ()


class Loaded(NamedTuple):
    """The result of loading a part of a record.

    Args:
        value: the loaded batch or state.
        notes: how the loaded value differs from the saved one.
        replaced: the import paths of classes that were not given; a plain value stands for each.
    """

    value: Any
    notes: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()


def save_batch(batch: Any, folder: Path) -> Saved:
    """Save a batch: tensors and arrays in nested containers, named tuples and dataclasses; other objects are named in a note.

    Args:
        batch: as the training step got it.
        folder: of the record; it exists.

    Raises:
        OSError: the files cannot be written.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     saved = save_batch({"x": torch.ones(2), "name": "a"}, Path(folder))
        ...     load_batch(Path(folder)).value
        {'x': tensor([1., 1.]), 'name': 'a'}
    """
    return _save(batch, folder, "batch")


def load_batch(folder: Path, file: str = "batch.json", classes: Mapping[str, type] | None = None) -> Loaded:
    """The batch of `save_batch`, in host memory.

    Args:
        folder: of the record.
        file: its name in the folder.
        classes: the classes of containers that the batch may have, by their import paths. A plain value with the same
            attributes stands for any other.

    Raises:
        UnreadableError: it is missing, damaged, of a later format, or outside the folder; the message names the file.
    """
    return _load(folder, file, classes)


def save_weights(model: nn.Module, folder: Path) -> Saved:
    """Save all parameters and buffers by their dotted names, also buffers that a `state_dict` leaves out.

    Raises:
        OSError: the files cannot be written.
    """
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    return _save({name: each.detach() for name, each in named}, folder, "weights")


def load_weights(model: nn.Module, folder: Path, file: str = "weights.json") -> tuple[str, ...]:
    """Write the parameters and buffers of `save_weights` into a model.

    Returns:
        Notes: names that only the model has, or only the file.

    Raises:
        RuleError: the file is missing, damaged or of a later format, or a tensor has another shape; the message names it.
    """
    loaded = _load(folder, file)
    if not isinstance(loaded.value, dict) or not all(
        isinstance(name, str) and isinstance(each, Tensor) and each.layout is torch.strided
        for name, each in loaded.value.items()
    ):
        raise UnreadableError(f"{folder / file} is damaged: it must hold dense tensors by their names")
    saved: dict[str, Tensor] = {_uncompiled(name): each for name, each in loaded.value.items()}
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    own = {_uncompiled(name): each for name, each in named}
    with torch.no_grad():
        for name, tensor in own.items():
            if name not in saved:
                continue
            if saved[name].shape != tensor.shape or saved[name].is_complex() != tensor.is_complex():
                shapes = f"{_shape(saved[name])} in {file} and {_shape(tensor)} in the module"
                raise RuleError(f"{name} has the shape {shapes}: the module is not the one that was recorded")
            tensor.copy_(saved[name])
    notes = [f"{name} is not in {file}" for name in own if name not in saved]
    return (*loaded.notes, *notes, *(f"{name} of {file} is not in the module" for name in saved if name not in own))


def save_optimizers(optimizers: Sequence[Optimizer], folder: Path) -> Saved:
    """Save the `state_dict` of each optimizer.

    Raises:
        OSError: the files cannot be written.
    """
    return _save([optimizer.state_dict() for optimizer in optimizers], folder, "optimizers")


def load_optimizers(folder: Path, file: str = "optimizers.json", classes: Mapping[str, type] | None = None) -> Loaded:
    """The list of state dictionaries of `save_optimizers`; an optimizer that loads one takes over its tensors.

    Raises:
        UnreadableError: it is missing, damaged or of a later format; the message names the file.
    """
    loaded = _load(folder, file, classes)
    if not isinstance(loaded.value, list) or not all(isinstance(each, dict) for each in loaded.value):
        raise UnreadableError(f"{folder / file} is damaged: it must hold a list of the states of optimizers")
    return loaded


def save_generators(folder: Path, generators: Generators | None = None) -> Saved:
    """Save the states of the generators of torch, CUDA, Python and NumPy, all in one file of JSON.

    Args:
        folder: of the record.
        generators: the states when the step began; by default those of now.

    Raises:
        OSError: the file cannot be written.
    """
    states = generators or Generators()
    value = {
        "torch": states.torch.numpy().tobytes(),
        "cuda": [each.numpy().tobytes() for each in states.cuda],
        "python": states.python,
        "numpy": _plain(states.numpy),
    }
    return _save(value, folder, "generators")


def load_generators(folder: Path, file: str = "generators.json") -> Generators:
    """The states of `save_generators`; `restore()` sets the generators to them.

    Raises:
        UnreadableError: the file is missing, damaged or of a later format; the message names it.
    """
    states = _load(folder, file).value
    present, generators = Generators(), Generators()
    try:
        generators.torch = _bytes(states["torch"])
        generators.cuda = [_bytes(each) for each in states["cuda"]] if torch.cuda.is_available() else []
        generators.python, generators.numpy = states["python"], states["numpy"]
        _check_positions(generators.numpy)
        # The libraries check a state when a generator is set to it.
        generators.restore()
    except Exception as error:
        reason = shortened(f"{type(error).__name__}: {error}", 300)
        raise UnreadableError(f"{folder / file} is damaged: no generator has this state ({reason})") from error
    finally:
        present.restore()
    return generators


def _check_positions(state: Any) -> None:
    """Raise if NumPy would read beyond the words of a generator: it does not check the position in them."""
    positions = {"pos": 624, "buffer_pos": 4}
    found = {"pos": state[2]} if isinstance(state, tuple) else {**state, **state["state"]}
    for name, last in positions.items():
        if name in found and not (type(found[name]) is int and 0 <= found[name] <= last):
            raise ValueError(f"{name} must be an integer from 0 to {last}, got {shown(found[name])}")


def _plain(state: Any) -> Any:
    """A state of NumPy's generator with lists for arrays and integers for NumPy's."""
    if isinstance(state, (dict, tuple)):
        plain = [_plain(each) for each in (state.values() if isinstance(state, dict) else state)]
        return dict(zip(state, plain, strict=True)) if isinstance(state, dict) else tuple(plain)
    return state.tolist() if isinstance(state, (np.ndarray, np.generic)) else state


def _bytes(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def _shape(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)}{' of complex numbers' if tensor.is_complex() else ''}"


def _uncompiled(name: str) -> str:
    """The name of a tensor without the wrapper that `torch.compile` puts around a module."""
    return name.replace("_orig_mod.", "")


def _save(value: Any, folder: Path, stem: str) -> Saved:
    encoder = Encoder()
    encoded = encoder.encode(value, "" if isinstance(value, dict) else stem)
    file = f"{stem}.safetensors" if encoder.tensors else ""
    if file:
        write_tensors(encoder.tensors, folder / file)
    content = {"format": FORMAT, "tensors": file, "value": encoded}
    write_whole(folder / f"{stem}.json", json.dumps(content, allow_nan=False))
    return Saved(f"{stem}.json", tuple(encoder.notes))


def _load(folder: Path, file: str, classes: Mapping[str, type] | None = None) -> Loaded:
    path = path_inside(folder, file)
    content = read_json(path, MAX_BYTES)
    try:
        match content:
            case {"format": int(version)} if version > FORMAT:
                raise UnreadableError(f"it has format {version}, and this version reads formats up to {FORMAT}")
            case {"format": int(), "tensors": str(tensors), "value": value}:
                decoder = Decoder(read_tensors(path_inside(folder, tensors)) if tensors else {}, classes)
                return Loaded(decoder.decode(value), tuple(decoder.notes), tuple(decoder.replaced))
        raise UnreadableError("it is damaged: it must have a format, the name of a file of tensors, and a value")
    except UnreadableError as error:
        raise UnreadableError(f"{path}: {error}") from error
