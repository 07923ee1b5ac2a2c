"""Reading the state in a checkpoint: every value must be of the kind that its owner saves.

Each check raises `DamagedState`, whose message begins with the key of the value, before its caller has changed anything.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from lightning_hooks.errors import shown

_MOST = 2**63  # a count that is larger was not counted


class DamagedState(ValueError):
    """A value in a checkpoint that its owner cannot have saved; the message names the key and what would be right."""


@contextmanager
def starting_again(damaged: list[str], owner: str = "") -> Iterator[None]:
    """Around the load of one object, which starts again if its state is damaged: adds to `damaged` what is wrong.

    Args:
        damaged: what is wrong so far, in words.
        owner: whose state it is, for messages; empty where the key says so.
    """
    try:
        yield
    except ValueError as error:
        damaged.append(f"{owner and f'{owner}: '}{error}")


def read_mapping(value: Any, key: str, needed: Iterable[str] = ()) -> dict[str, Any]:
    """A mapping with strings as keys, among them those that are needed."""
    if not isinstance(value, Mapping) or not all(isinstance(each, str) for each in value):
        raise DamagedState(f"{key} must be a mapping with strings as keys, got {shown_value(value)}")
    for each in needed:
        if each not in value:
            raise DamagedState(f"{key} has no {each!r}")
    return dict(value)


def read_state(value: Any, key: str) -> dict[Any, Any]:
    """The state of a transform: its own dictionary, whose keys a user's transform chooses."""
    if not isinstance(value, dict):
        raise DamagedState(f"{key} must be a dictionary, got {shown_value(value)}")
    return value


def refuse_other_keys(state: Mapping[str, Any], *keys: str) -> None:
    """Refuse a state of a transform that is neither empty, as before the first step, nor has exactly these keys."""
    for key in state:
        if key not in keys:
            raise DamagedState(f"state has an unknown key {key!r}")
    for key in keys if state else ():
        if key not in state:
            raise DamagedState(f"state has no {key!r}")


def read_list(value: Any, key: str) -> list[Any]:
    """A list, or a tuple."""
    if not isinstance(value, (list, tuple)):
        raise DamagedState(f"{key} must be a list, got {shown_value(value)}")
    return list(value)


def read_text(value: Any, key: str) -> str:
    """A string."""
    if not isinstance(value, str):
        raise DamagedState(f"{key} must be a string, got {shown_value(value)}")
    return value


def read_count(value: Any, key: str, at_least: int = 0, below: int = _MOST) -> int:
    """An integer within bounds; True and False are none."""
    if type(value) is not int or not at_least <= value < below:
        raise DamagedState(f"{key} must be an integer from {at_least} to {below - 1}, got {shown_value(value)}")
    return value


def read_number(value: Any, key: str, at_least: float = -math.inf) -> float:
    """A finite number of at least `at_least`, as a float."""
    try:
        number = float(value) if _is_number(value) else math.nan
    except OverflowError:  # of an integer
        number = math.inf
    if not math.isfinite(number) or number < at_least:
        bound = "" if at_least == -math.inf else f" of at least {at_least:g}"
        raise DamagedState(f"{key} must be a finite number{bound}, got {shown_value(value)}")
    return number


def read_tensor(value: Any, key: str, shape: Sequence[int] | None = None, *, is_complex: bool | None = False) -> Tensor:
    """A dense tensor of floating-point numbers.

    Args:
        value: from the checkpoint.
        key: of the value, for messages.
        shape: of the tensor; any by default.
        is_complex: whether its numbers are complex; None for either.
    """
    kind = {True: "complex", False: "floating-point", None: "floating-point or complex"}[is_complex]
    wanted = f"a dense {kind} tensor" + ("" if shape is None else f" of shape {tuple(shape)}")
    if not isinstance(value, Tensor) or value.layout is not torch.strided or value.is_meta:
        raise DamagedState(f"{key} must be {wanted}, got {shown_value(value)}")
    is_right = value.is_complex() if is_complex else value.is_floating_point() or (is_complex is None and value.is_complex())
    if not is_right or (shape is not None and tuple(value.shape) != tuple(shape)):
        raise DamagedState(f"{key} must be {wanted}, got {shown_value(value)}")
    return value


def check_like(value: Any, template: Any, key: str) -> None:
    """Refuse a value that is of another kind than what its owner starts with.

    Mappings must have the keys of the template and may have more. Numbers may have become NaN, and tensors may have grown. A
    value that starts as None may be anything.

    Args:
        value: from the checkpoint.
        template: what the owner starts with.
        key: of the value, for messages.

    Raises:
        DamagedState: with the key and what would be right.

    Example:
        >>> check_like({"seen": "three"}, {"seen": 0}, "state")
        Traceback (most recent call last):
        lightning_hooks.saved_state.DamagedState: state['seen'] must be a number, got 'three'
    """
    if isinstance(template, Mapping):
        if not isinstance(value, Mapping):
            raise DamagedState(f"{key} must be a mapping, got {shown_value(value)}")
        for name, part in template.items():
            if name not in value:
                raise DamagedState(f"{key} has no {name!r}")
            check_like(value[name], part, f"{key}[{name!r}]")
    elif isinstance(template, Tensor):
        _check_tensor_like(value, template, key)
    elif _is_number(template):
        if not _is_number(value):
            raise DamagedState(f"{key} must be a number, got {shown_value(value)}")
        if isinstance(template, int) and (not -_MOST <= value < _MOST):
            raise DamagedState(f"{key} must be a finite number below 2**63, got {shown_value(value)}")
    elif template is not None and not isinstance(value, (list, tuple) if type(template) in (list, tuple) else type(template)):
        raise DamagedState(f"{key} must be of type {type(template).__name__}, got {shown_value(value)}")


def _check_tensor_like(value: Any, template: Tensor, key: str) -> None:
    if not isinstance(value, Tensor) or value.is_meta != template.is_meta:
        raise DamagedState(f"{key} must be a tensor, got {shown_value(value)}")
    kinds = [
        (each.layout, "complex" if each.is_complex() else "floating-point" if each.is_floating_point() else str(each.dtype))
        for each in (value, template)
    ]
    if kinds[0] != kinds[1] or (value.dim() != template.dim() and template.numel() > 0):
        raise DamagedState(f"{key} must be a {kinds[1][1]} tensor with {template.dim()} dimensions, got {shown_value(value)}")


def shown_value(value: Any) -> str:
    """A value in words for a message; of a tensor only its kind."""
    return f"a tensor of {value.dtype} and shape {tuple(value.shape)}" if isinstance(value, Tensor) else shown(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
