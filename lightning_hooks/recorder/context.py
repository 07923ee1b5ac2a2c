"""Checks of the context of a record: the values that a replay gives to a Trainer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from lightning_hooks.errors import RuleError, shown

_MOST: Final = 2**53


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < _MOST


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < _MOST and math.isfinite(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _are_rates(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(each, list) and all(map(_is_number, each)) for each in value.values())


_EXPECTED: Final[Mapping[str, tuple[Callable[[Any], bool], str]]] = {
    "epoch": (_is_count, "a count"),
    "batch_idx": (_is_count, "a count"),
    "global_step": (_is_count, "a count"),
    "accumulate_grad_batches": (_is_count, "a count"),
    "gradient_clip_val": (_is_number, "a finite number"),
    "loss_scale": (_is_number, "a finite number"),
    "gradient_clip_algorithm": (lambda value: value in ("norm", "value"), "'norm' or 'value'"),
    "precision": (_is_text, "a text"),
    "device": (_is_text, "a text"),
    "module": (_is_text, "a text"),
    "checkpoint": (_is_text, "a text"),
    "optimizers": (_are_rates, "learning rates by optimizer"),
    "hyperparameters": (lambda value: isinstance(value, Mapping), "a mapping"),
}


def check_context(context: Mapping[str, Any]) -> None:
    """Raise if a value that a replay uses cannot have been recorded; a value that is missing or null is right.

    Raises:
        RuleError: the message names the value and what would be right.

    Example:
        >>> check_context({"epoch": "x"})
        Traceback (most recent call last):
        lightning_hooks.errors.RuleError: context.epoch must be a count, got 'x': the record is damaged
    """
    for name, (is_valid, expected) in _EXPECTED.items():
        value = context.get(name)
        if value is not None and not is_valid(value):
            raise RuleError(f"context.{name} must be {expected}, got {shown(value)}: the record is damaged")
