"""Multiplication of tensors by masks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lightning_hooks.errors import RuleError, TransformError, did_you_mean, shown
from lightning_hooks.rules.calling import check_takes
from lightning_hooks.rules.fields import check_path
from lightning_hooks.rules.reading import as_callable
from lightning_hooks.tensor_kinds import same_bits
from lightning_hooks.transforms._batch import WIDER, over_each
from lightning_hooks.transforms._contract import zeroed
from lightning_hooks.transforms.base import Context, Transform

MaskFunction = Callable[[str, Tensor], Tensor]
"""Called with (dotted name, tensor); returns the mask of the tensor."""

_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt", ".safetensors")


@dataclass(frozen=True, eq=False)
class Mask(Transform):
    """Multiply each tensor by a mask; where the mask is 0 the result is 0, even for NaN and infinity.

    A mask is boolean, or real without NaN and infinity. Its shape must broadcast to that of the tensor: `[out, 1]` masks
    whole rows. Masks are kept on the device of the tensors after their first use; a function is called every time. A
    parameter with a zero gradient is not frozen: weight decay and momentum still move it (see `Freeze`).

    Source: `optax.masked` around `optax.set_to_zero`, extended to masks of single elements.

    Args:
        mask: one tensor for all; or a mapping from dotted names to tensors; or the path of a file that holds either,
            written by `torch.save` (read with `weights_only`) or, if it ends in `.safetensors`, by safetensors; or a
            function of the dotted name and the tensor that returns the mask, or its import path. A string is the path of
            a file if that file exists, or if it ends in `.pt`, `.pth`, `.bin`, `.ckpt` or `.safetensors`.

    Raises:
        RuleError: the file cannot be read or does not contain a mask, or the mask has another type.
        TransformError: a tensor has no mask, or the mask does not fit its shape.

    Example:
        >>> keep = Mask({"net.weight": torch.tensor([True, False])})
        >>> keep([torch.tensor([3.0, float("nan")])], Context(names=["net.weight"]))
        [tensor([3., 0.])]
        >>> Mask(lambda name, tensor: tensor.abs() > 1)([torch.tensor([0.5, -2.0])], Context())
        [tensor([ 0., -2.])]
    """

    mask: Tensor | Mapping[str, Tensor] | str | Path | MaskFunction
    _resolved: Any = field(init=False, repr=False)
    _cache: dict[Any, Tensor] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        resolved = _loaded(self.mask) if isinstance(self.mask, (str, Path)) else self.mask
        if isinstance(resolved, Mapping):
            resolved = dict(resolved)
            if not resolved:
                raise RuleError("Mask.mask is an empty mapping; give a mask for each name")
            for name, value in resolved.items():
                _check(value, f"Mask.mask: the mask of '{name}'", RuleError)
                _check_values(value, f"Mask.mask: the mask of '{name}'")
        elif isinstance(resolved, Tensor):
            _check(resolved, "Mask.mask: the mask", RuleError)
            _check_values(resolved, "Mask.mask: the mask")
        elif not callable(resolved) or isinstance(resolved, type):
            raise RuleError(
                "Mask.mask must be a tensor, a mapping from names to tensors, the path of a file, or a function, "
                f"got {shown(resolved)}"
            )
        else:
            check_takes(resolved, "Mask.mask", "name", "tensor")
        # Setting an attribute of a frozen dataclass raises, so call the method of `object`.
        object.__setattr__(self, "_resolved", resolved)

    def __eq__(self, other: object) -> bool:
        """Whether both have the same masks, path or function."""
        return isinstance(other, Mask) and _same(self.mask, other.mask)

    def __hash__(self) -> int:
        """Equal for all masks of one type, since tensors have no hash of their values."""
        return hash((Mask, type(self.mask).__name__))

    def __reduce__(self) -> tuple[type[Mask], tuple[Any]]:
        """Copy and pickle without the masks on the devices, which the copy creates again."""
        return Mask, (self.mask,)

    def __call__(self, tensors: list[Tensor], context: Context) -> list[Tensor]:
        """Each tensor times its mask."""
        masks = [self._mask_for(context.name_of(i), tensor) for i, tensor in enumerate(tensors)]
        return over_each(tensors, context, _masked, masks)

    def _mask_for(self, name: str, tensor: Tensor) -> Tensor:
        """The mask for the values of a tensor, on the tensor's device and in the dtype to calculate in."""
        given, key = self._resolved, ""
        if isinstance(given, Mapping):
            if name not in given:
                raise TransformError(f"Mask has no mask for '{name}'{did_you_mean(name, given)}; it has {len(given)}")
            given, key = given[name], name
        elif not isinstance(given, Tensor):
            given = given(name, tensor.detach())
            _check(given, f"the mask that Mask.mask returned for '{name}'", TransformError)
            return _expanded(_converted(given, tensor), tensor, name)
        cache_key = (key, tensor.device, tensor.dtype)
        if cache_key not in self._cache:
            self._cache[cache_key] = _converted(given, tensor)
        return _expanded(self._cache[cache_key], tensor, name)


def _loaded(given: str | Path) -> Any:
    check_path("Mask.mask", given)
    if isinstance(given, Path) or Path(given).suffix in _SUFFIXES or Path(given).exists():
        return _read(Path(given))
    return as_callable(given, "Mask.mask", "name", "tensor")


def _read(path: Path) -> Any:
    try:
        if path.suffix == ".safetensors":
            try:
                from safetensors.torch import load_file
            except ImportError as error:
                raise RuleError(f"Mask.mask {str(path)!r} needs safetensors: pip install safetensors") from error
            return load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except RuleError:
        raise
    except FileNotFoundError as error:
        raise RuleError(f"Mask.mask {str(path)!r} is not a file; the directory is {str(Path.cwd())!r}") from error
    except Exception as error:
        raise RuleError(f"Mask.mask {str(path)!r} cannot be read as masks ({type(error).__name__}: {error})") from error


def _check(value: object, what: str, kind: type[RuleError] | type[TransformError]) -> None:
    if not isinstance(value, Tensor):
        raise kind(f"{what} must be a tensor, got {type(value).__name__}")
    if value.is_complex() or value.layout is not torch.strided:
        shown = "complex" if value.is_complex() else f"of layout {value.layout}"
        raise kind(f"{what} must be boolean or real, and dense, but it is {shown}")


def _check_values(mask: Tensor, what: str) -> None:
    """Raise if a mask holds NaN or infinity. Masks from a function are not checked: reading them would wait for the device."""
    if mask.is_meta:
        raise RuleError(f"{what} has no values: it is on the device 'meta'")
    if mask.is_floating_point() and not bool(mask.to(torch.promote_types(mask.dtype, torch.float32)).isfinite().all()):
        raise RuleError(f"{what} must not hold NaN or infinity")


def _converted(mask: Tensor, tensor: Tensor) -> Tensor:
    wide = WIDER.get(tensor.dtype, tensor.dtype).to_real()
    return mask.detach().to(tensor.device, torch.bool if mask.dtype is torch.bool else wide)


def _expanded(mask: Tensor, tensor: Tensor, name: str) -> Tensor:
    try:
        expanded = mask.expand(tensor.shape)
    except RuntimeError as error:
        raise TransformError(
            f"the mask of '{name}' has shape {tuple(mask.shape)}, which does not broadcast to the tensor's shape "
            f"{tuple(tensor.shape)}"
        ) from error
    return expanded[tuple(tensor.coalesce().indices())] if tensor.is_sparse else expanded


def _masked(value: Tensor, owned: bool, mask: Tensor) -> Tensor:
    hidden = ~mask if mask.dtype is torch.bool else mask == 0
    # Set hidden elements to zero first: a product with 0 would keep NaN.
    result = zeroed(value, hidden, owned)
    if mask.dtype is torch.bool:
        return result
    # Calculate the product in the wider dtype of the mask, and round once. Torch promotes to the dtype of the mask because
    # both have the same number of dimensions: it would ignore the dtype of a scalar beside a tensor with dimensions.
    return result.mul_(mask) if owned else (result * mask).to(value.dtype)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return same_bits(one, other)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    return type(one) is type(other) and not isinstance(one, (Tensor, Mapping)) and bool(one == other)
