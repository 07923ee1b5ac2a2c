"""A user's own function as a transform."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType

from torch import Tensor

from lightning_hooks.errors import RuleError, TransformError, did_you_mean
from lightning_hooks.transforms.base import Context, Transform


@dataclass(frozen=True)
class Function(Transform):
    """Apply a function of one tensor to each tensor.

    The function gets the tensor as it is, also where it is sparse, and must return a new one of the same shape, dtype,
    device and layout; it must not change its argument.

    Args:
        call: a callable `Tensor -> Tensor`, or the import path of one, as in `"torch.tanh"`.

    Raises:
        RuleError: where the path cannot be imported, or what it leads to cannot be called with a tensor.
        TransformError: when the function returns something that cannot take the tensor's place.

    Example:
        >>> import torch
        >>> Function("torch.sign")([torch.tensor([0.5, -2.0])], Context())
        [tensor([ 1., -1.])]
    """

    call: Callable[[Tensor], Tensor] | str
    _resolved: Callable[[Tensor], Tensor] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        target = _load(self.call) if isinstance(self.call, str) else self.call
        if isinstance(target, type):
            raise RuleError(f"Function.call must be a function or an instance, got the class {self.call!r}")
        if not callable(target):
            raise RuleError(
                f"Function.call must be callable or the import path of a callable, got {self.call!r}"
                + (f", which is of type {type(target).__name__}" if isinstance(self.call, str) else "")
            )
        # A frozen dataclass sets a derived field this way.
        object.__setattr__(self, "_resolved", target)

    def __call__(self, tensors: list[Tensor], context: Context) -> list[Tensor]:
        """What the function returns for each tensor."""
        return [self._checked(self._resolved(tensor), tensor, index, context) for index, tensor in enumerate(tensors)]

    def _checked(self, result: object, given: Tensor, index: int, context: Context) -> Tensor:
        what = f"Function.call {self.call!r} returned for '{context.name_of(index)}'"
        if not isinstance(result, Tensor):
            raise TransformError(f"{what} {type(result).__name__}, not a tensor")
        for attribute in ("shape", "dtype", "device", "layout"):
            got, wanted = getattr(result, attribute), getattr(given, attribute)
            if got != wanted:
                shown = (tuple(got), tuple(wanted)) if attribute == "shape" else (got, wanted)
                raise TransformError(f"{what} a tensor of {attribute} {shown[0]}, not {shown[1]}")
        return result


def _load(path: str) -> object:
    parts = path.split(".")
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        raise RuleError(f"Function.call must be an import path such as 'package.module.function', got {path!r}")
    target: object = _module(path, parts[0])
    if target is None:
        raise RuleError(f"Function.call {path!r} cannot be imported: there is no module {parts[0]!r}")
    for end, name in enumerate(parts[1:], start=2):
        # As in `from package import name`: an attribute first, then a module that nobody has imported yet.
        if hasattr(target, name):
            target = getattr(target, name)
            continue
        found = _module(path, ".".join(parts[:end])) if isinstance(target, ModuleType) else None
        if found is None:
            hint = did_you_mean(name, [known for known in dir(target) if not known.startswith("_")])
            where = ".".join(parts[: end - 1])
            raise RuleError(f"Function.call {path!r} cannot be imported: {where} has no {name!r}{hint}")
        target = found
    return target


def _module(path: str, name: str) -> ModuleType | None:
    """The module of that name; None where there is none."""
    try:
        return importlib.import_module(name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == name:
            return None
        # The module is there, and fails: what it says is what its author needs to see.
        reason = f"{type(error).__name__}: {error}"
        raise RuleError(f"Function.call {path!r} cannot be imported: importing {name} raises {reason}") from error
