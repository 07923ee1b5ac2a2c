"""The files beside a flight record, from which its step is replayed: batch, weights, optimizers, generators.

Each is a file of JSON with the structure, and a file of safetensors with the tensors, which the JSON names. All are written in
one piece. Without the package safetensors, `torch.save` writes the tensors, and `torch.load(weights_only=True)` reads them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_hooks.engine.recording.structures import Decoder, Encoder
from lightning_hooks.errors import RuleError
from lightning_hooks.snapshot.generators import Generators
from lightning_hooks.whole_files import whole_file, write_whole

FORMAT: Final = 1
"""The version of these files. A reader accepts this number and lower ones."""
WITHOUT_SAFETENSORS: Final = (
    "safetensors is not installed, so torch.save has written the tensors; pip install 'lightning-hooks[recorder]' brings it"
)


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
    """

    value: Any
    notes: tuple[str, ...] = ()


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


def load_batch(folder: Path, file: str = "batch.json") -> Loaded:
    """The batch of `save_batch`, in host memory.

    Raises:
        RuleError: it is missing, damaged or of a later format; the message names the file.
    """
    return _load(folder, file)


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
    saved: dict[str, Tensor] = {_uncompiled(name): each for name, each in loaded.value.items()}
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    own = {_uncompiled(name): each for name, each in named}
    with torch.no_grad():
        for name, tensor in own.items():
            if name not in saved:
                continue
            if saved[name].shape != tensor.shape:
                shapes = f"{tuple(saved[name].shape)} in {file} and {tuple(tensor.shape)} in the module"
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


def load_optimizers(folder: Path, file: str = "optimizers.json") -> Loaded:
    """The list of state dictionaries of `save_optimizers`; an optimizer that loads one takes over its tensors.

    Raises:
        RuleError: it is missing, damaged or of a later format; the message names the file.
    """
    return _load(folder, file)


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
        RuleError: the file is missing, damaged or of a later format; the message names it.
    """
    states = _load(folder, file).value
    generators = Generators()
    generators.torch = _bytes(states["torch"])
    generators.cuda = [_bytes(each) for each in states["cuda"]] if torch.cuda.is_available() else []
    generators.python, generators.numpy = states["python"], states["numpy"]
    return generators


def _plain(state: Any) -> Any:
    """A state of NumPy's generator with lists for arrays and integers for NumPy's."""
    if isinstance(state, (dict, tuple)):
        plain = [_plain(each) for each in (state.values() if isinstance(state, dict) else state)]
        return dict(zip(state, plain, strict=True)) if isinstance(state, dict) else tuple(plain)
    return state.tolist() if isinstance(state, (np.ndarray, np.generic)) else state


def _bytes(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def _uncompiled(name: str) -> str:
    """The name of a tensor without the wrapper that `torch.compile` puts around a module."""
    return name.replace("_orig_mod.", "")


def _save(value: Any, folder: Path, stem: str) -> Saved:
    encoder = Encoder()
    encoded = encoder.encode(value, "" if isinstance(value, dict) else stem)
    file, notes = "", list(encoder.notes)
    if encoder.tensors:
        file, missing = _write_tensors(encoder.tensors, folder, stem)
        notes += missing
    content = {"format": FORMAT, "tensors": file, "value": encoded}
    write_whole(folder / f"{stem}.json", json.dumps(content, allow_nan=False))
    return Saved(f"{stem}.json", tuple(notes))


def _write_tensors(tensors: dict[str, Tensor], folder: Path, stem: str) -> tuple[str, list[str]]:
    """Write tensors, and return the name of the file, and notes."""
    library = _safetensors()
    file = f"{stem}.safetensors" if library else f"{stem}.pt"
    try:
        with whole_file(folder / file) as unfinished:
            if library:
                library.save_file(tensors, unfinished)
            else:
                torch.save(tensors, unfinished)
    except Exception as error:
        if type(error).__name__ == "SafetensorError":
            raise OSError(f"{folder / file}: {error}") from error
        raise
    return file, [] if library else [WITHOUT_SAFETENSORS]


def _load(folder: Path, file: str) -> Loaded:
    path = folder / file
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] > FORMAT:
            raise RuleError(f"{path} has format {content['format']}, and this version reads formats up to {FORMAT}")
        decoder = Decoder(_read_tensors(folder / content["tensors"]) if content["tensors"] else {})
        return Loaded(decoder.decode(content["value"]), tuple(decoder.notes))
    except OSError as error:
        raise RuleError(f"{path} cannot be read: {error.strerror or error}") from None
    except RuleError as error:
        raise RuleError(f"{path}: {error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise RuleError(f"{path} is damaged: {type(error).__name__}: {error}") from error


def _read_tensors(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".pt":
        read: dict[str, Tensor] = torch.load(path, weights_only=True)
        return read
    library = _safetensors()
    if library is None:
        raise RuleError(f"{path.name} needs safetensors: pip install 'lightning-hooks[recorder]'")
    try:
        tensors: dict[str, Tensor] = library.load_file(path)
    except Exception as error:
        if isinstance(error, OSError):
            raise
        raise RuleError(f"{path.name} is damaged: {error}") from error
    return tensors


def _safetensors() -> ModuleType | None:
    try:
        import safetensors.torch
    except ImportError:
        return None
    return safetensors.torch
