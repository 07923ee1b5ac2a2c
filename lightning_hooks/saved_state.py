"""Checks of the state in a checkpoint: each function reads one value and raises if its owner cannot have saved the value.

The message of the `DamagedState` begins with the key of the value. Callers run the checks before they change anything.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from lightning_hooks.errors import shown

# A number in a checkpoint that a count cannot have reached: counts fit into a signed integer of 64 bits.
_COUNT_LIMIT = 2**63


class DamagedState(ValueError):
    """A value in a checkpoint that its owner cannot have saved; the message names the key and what would be right."""


def read_mapping(value: Any, key: str, needed: Iterable[str] = ()) -> dict[str, Any]:
    """The value as a dictionary; it must be a mapping with strings as keys, `needed` among them."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise DamagedState(f"{key} must be a mapping with strings as keys, got {shown_value(value)}")
    for name in needed:
        if name not in value:
            raise DamagedState(f"{key} has no {name!r}")
    return dict(value)


def read_state(value: Any, key: str) -> dict[Any, Any]:
    """The state of a transform, which must be a dictionary; a user's transform may choose keys of any type."""
    if not isinstance(value, dict):
        raise DamagedState(f"{key} must be a dictionary, got {shown_value(value)}")
    return value


def refuse_other_keys(state: Mapping[str, Any], *keys: str) -> None:
    """Raise if a transform's state does not have exactly these keys; an empty state, as before the first step, is right."""
    for key in state:
        if key not in keys:
            raise DamagedState(f"state has an unknown key {key!r}")
    for key in keys if state else ():
        if key not in state:
            raise DamagedState(f"state has no {key!r}")


def read_count(value: Any, key: str, at_least: int = 0, below: int = _COUNT_LIMIT) -> int:
    """The value, which must be an integer from `at_least` to `below - 1`; True and False are refused."""
    if type(value) is not int or not at_least <= value < below:
        raise DamagedState(f"{key} must be an integer from {at_least} to {below - 1}, got {shown_value(value)}")
    return value


def read_number(value: Any, key: str, at_least: float = -math.inf) -> float:
    """The value as a float; it must be a finite number of at least `at_least`."""
    try:
        number = float(value) if _is_number(value) else math.nan
    except OverflowError:
        # The integer is beyond the range of a float.
        number = math.inf
    if not math.isfinite(number) or number < at_least:
        bound = "" if at_least == -math.inf else f" of at least {at_least:g}"
        raise DamagedState(f"{key} must be a finite number{bound}, got {shown_value(value)}")
    return number


def read_tensor(value: Any, key: str, shape: Sequence[int] | None = None, *, is_complex: bool | None = False) -> Tensor:
    """The value, which must be a dense tensor of floating-point or complex numbers.

    Args:
        value: the value in the checkpoint.
        key: names the value in messages.
        shape: the shape that the tensor must have; None, the default, for any.
        is_complex: whether the numbers must be complex, False by default; None for either.
    """
    kind = {True: "complex", False: "floating-point", None: "floating-point or complex"}[is_complex]
    expected = f"a dense {kind} tensor" + ("" if shape is None else f" of shape {tuple(shape)}")
    if not isinstance(value, Tensor) or value.layout is not torch.strided or value.is_meta:
        raise DamagedState(f"{key} must be {expected}, got {shown_value(value)}")
    is_right = value.is_complex() if is_complex else value.is_floating_point() or (is_complex is None and value.is_complex())
    if not is_right or (shape is not None and tuple(value.shape) != tuple(shape)):
        raise DamagedState(f"{key} must be {expected}, got {shown_value(value)}")
    return value


def check_like(value: Any, template: Any, key: str) -> None:
    """Raise if a value is not of the same kind as the initial value of its owner.

    A mapping must have the keys of the template and may have more. A number may be NaN. A tensor may have another shape with
    the same number of dimensions, and any shape if the template is empty. A value that starts as None may be anything.

    Args:
        value: the value in the checkpoint.
        template: the initial value of the owner.
        key: names the value in messages.

    Raises:
        DamagedState: the message names the key and says what would be right.

    Example:
        >>> check_like({"calls": "three"}, {"calls": 0}, "state")
        Traceback (most recent call last):
        lightning_hooks.saved_state.DamagedState: state['calls'] must be a number, got 'three'
    """
    if isinstance(template, Mapping):
        if not isinstance(value, Mapping):
            raise DamagedState(f"{key} must be a mapping, got {shown_value(value)}")
        for name, initial in template.items():
            if name not in value:
                raise DamagedState(f"{key} has no {name!r}")
            check_like(value[name], initial, f"{key}[{name!r}]")
    elif isinstance(template, Tensor):
        _check_tensor_like(value, template, key)
    elif _is_number(template):
        if not _is_number(value):
            raise DamagedState(f"{key} must be a number, got {shown_value(value)}")
        if isinstance(template, int) and (not -_COUNT_LIMIT <= value < _COUNT_LIMIT):
            raise DamagedState(f"{key} must be a finite number below 2**63, got {shown_value(value)}")
    elif template is not None and not isinstance(value, (list, tuple) if type(template) in (list, tuple) else type(template)):
        raise DamagedState(f"{key} must be of type {type(template).__name__}, got {shown_value(value)}")


def _check_tensor_like(value: Any, template: Tensor, key: str) -> None:
    if not isinstance(value, Tensor) or value.is_meta != template.is_meta:
        raise DamagedState(f"{key} must be a tensor, got {shown_value(value)}")
    kinds = [
        (
            tensor.layout,
            "complex" if tensor.is_complex() else "floating-point" if tensor.is_floating_point() else str(tensor.dtype),
        )
        for tensor in (value, template)
    ]
    if kinds[0] != kinds[1] or (value.dim() != template.dim() and template.numel() > 0):
        raise DamagedState(f"{key} must be a {kinds[1][1]} tensor with {template.dim()} dimensions, got {shown_value(value)}")


def shown_value(value: Any) -> str:
    """A value for a message: the dtype and shape of a tensor, or the shortened `repr` of any other value."""
    return f"a tensor of {value.dtype} and shape {tuple(value.shape)}" if isinstance(value, Tensor) else shown(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
