"""The arguments of the operators of torch: which an operator reads, and which it writes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

from torch import Tensor

from lightning_hooks.private import private

UNINITIALISED: Final = frozenset(
    {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided", "resize_", "set_"}
)
"""Operators whose result holds whatever was in memory."""
OVERWRITING: Final = frozenset(
    {"copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_", "log_normal_", "cauchy_"}
    | {"geometric_", "resize_", "set_", "_foreach_copy_", "_foreach_zero_"}
)
"""In-place operators that do not read the tensor that they write."""


_RUNNING: Final = ("running_mean", "running_var")


class Argument(NamedTuple):
    """One tensor among the arguments of an operator.

    Args:
        name: as in the schema, with the position in a list of tensors: `self`, `exp_avgs[3]`.
        tensor: the tensor.
        position: in its list; None if it is no element of a list.
        is_written: whether the operator changes it.
        is_read: whether the result depends on it.
    """

    name: str
    tensor: Tensor
    position: int | None
    is_written: bool
    is_read: bool


def base_name(operator: Any) -> str:
    """The name without namespace and overload, such as `add_`."""
    name: str = operator.name()
    return name.partition("::")[2].partition(".")[0]


def tensor_arguments(operator: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Argument]:
    """The tensors among the arguments, in order."""
    arguments = []
    names, written = _schema_of(operator)
    overwrites = base_name(operator) in OVERWRITING
    unread = _RUNNING if _is_training_norm(operator, names, args) else ()
    named = [(names[i] if i < len(names) else f"input {i}", value) for i, value in enumerate(args)]
    for name, value in [*named, *kwargs.items()]:
        is_written = name in written
        # A tensor that is given by keyword and written is `out=`: its elements are not read.
        is_read = not (is_written and (overwrites or name in kwargs)) and name not in unread
        if isinstance(value, Tensor):
            arguments.append(Argument(name, value, None, is_written, is_read))
        elif isinstance(value, (list, tuple)):
            tensors = ((i, each) for i, each in enumerate(value) if isinstance(each, Tensor))
            arguments += [Argument(f"{name}[{i}]", each, i, is_written, is_read) for i, each in tensors]
    return arguments


def bad_scalars(operator: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, float]:
    """The numbers among the arguments that are not finite, by the names of the arguments."""
    names, _ = _schema_of(operator)
    named = {names[i] if i < len(names) else f"argument {i}": value for i, value in enumerate(args)} | kwargs
    flat: dict[str, float] = {}
    for name, value in named.items():
        several = isinstance(value, (list, tuple))
        for i, each in enumerate(value if several else [value]):
            if isinstance(each, float) and not math.isfinite(each):
                flat[f"{name}[{i}]" if several else name] = each
    return flat


def plain_arguments(operator: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[str, ...]:
    """The arguments that are plain values, or lists of such, as text: `dim=1`."""
    names, _ = _schema_of(operator)
    named = [(names[i] if i < len(names) else f"argument {i}", value) for i, value in enumerate(args)]
    return tuple(f"{name}={value!r}" for name, value in [*named, *kwargs.items()] if _is_plain(value))


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return isinstance(value, (bool, int, float, complex, str))


def results_of(result: Any) -> Iterator[tuple[int | None, Tensor]]:
    """The tensors of a result, each with its position; None if the result is one tensor."""
    if isinstance(result, Tensor):
        yield None, result
    elif isinstance(result, (list, tuple)):
        for i, each in enumerate(result):
            if isinstance(each, Tensor):
                yield i, each
            elif isinstance(each, (list, tuple)):
                yield from results_of(each)


def _is_training_norm(operator: Any, names: Sequence[str], args: Sequence[Any]) -> bool:
    """Whether an operator normalises by the statistics of its batch: its result does not depend on the running ones."""
    if "batch_norm" not in base_name(operator) or "backward" in base_name(operator):
        return False
    given = dict(zip(names, args, strict=False))
    return bool(given.get("training", given.get("train", "with_update" in base_name(operator))))


@cache
def _schema_of(operator: Any) -> tuple[tuple[str, ...], frozenset[str]]:
    """The names of the arguments, and of those among them that the operator writes."""

    def find() -> tuple[tuple[str, ...], frozenset[str]]:
        arguments = operator._schema.arguments
        written = (argument for argument in arguments if argument.alias_info is not None and argument.alias_info.is_write)
        return tuple(argument.name for argument in arguments), frozenset(argument.name for argument in written)

    return private("OpOverload._schema", find, _by_convention(operator), "operands have no names in a flight record")


def _by_convention(operator: Any) -> tuple[tuple[str, ...], frozenset[str]]:
    """As `_schema_of`, by the rule that the name of an in-place operator ends with `_`, and that results are called `out`."""
    name = base_name(operator)
    written = {"out", "out0", "out1", "out2"}
    if name.endswith("_"):
        # A fused optimizer writes its first lists: parameters, gradients if a scaler acts, and its state.
        written.update(f"input {i}" for i in range(6 if name.startswith("_fused_") else 1))
    return (), frozenset(written)
