"""Builds the module that a command names by an import path, with the arguments of a command line or of a flight record."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lightning_hooks.cli.given import module_classes
from lightning_hooks.errors import HooksError, RuleError, shortened, shown

if TYPE_CHECKING:
    from torch import nn


def built(path: str, values: Mapping[str, Any], advice: str, *, recorded: bool = False) -> nn.Module:
    """The module at an import path, built with arguments.

    Args:
        path: of a class, of a function that returns a module, or of a module that is built already.
        values: the arguments by name. A mapping with `class_path` and `init_args` stands for an object.
        advice: what a user can do if the module cannot be built, for the message.
        recorded: whether the values come from a flight record. Then values that the module does not take are dropped. Since
            the record may come from a stranger, the path must be that of a class of modules, and its values may name only
            classes of modules that the code of this class brings in.

    Raises:
        RuleError: there is no such path, the module cannot be built, or a record names something other than a module.

    Example:
        >>> built("torch.nn.Linear", {"in_features": 2, "out_features": 3, "bias": False}, "")
        Linear(in_features=2, out_features=3, bias=False)
    """
    from torch import nn

    from lightning_hooks.rules.importing import import_object

    kind = import_object(path, "module")
    if isinstance(kind, nn.Module) and (recorded or not values):
        return kind
    if recorded:
        if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
            raise RuleError(f"module: {path} is not a class of modules, and is not called with values of a record; {advice}")
        values = _taken(kind, values)
    elif not callable(kind):
        raise RuleError(f"module: {path} is {shown(kind)}; name a class of modules, or a function that returns a module")
    given = ", ".join(f"{name}={shown(value)}" for name, value in values.items())
    class_at = _of_record(module_classes([kind]), advice) if recorded else _imported
    try:
        model = kind(**{name: _object(value, class_at) for name, value in values.items()})
    except HooksError:
        raise
    except Exception as error:
        reason = shortened(f"{type(error).__name__}: {error}", 500)
        raise RuleError(f"module: {path}({given}) raises {reason}. Its arguments are {_signature(kind)}; {advice}") from error
    if not isinstance(model, nn.Module):
        raise RuleError(f"module: {path}({given}) gives {shown(model)}, not a torch.nn.Module")
    return model


def values_of(arguments: Sequence[str]) -> dict[str, Any]:
    """The values of `NAME=VALUE` arguments, which are YAML.

    Raises:
        RuleError: an argument is not `NAME=VALUE`, or its value is not valid YAML.

    Example:
        >>> values_of(["width=3", "--sizes=[1, 2]"])
        {'width': 3, 'sizes': [1, 2]}
    """
    return dict(map(_read, arguments))


def _taken(kind: Any, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """The values that a class or function takes; all if its signature is not known."""
    try:
        parameters = inspect.signature(kind).parameters
    except (TypeError, ValueError):
        return values
    takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    return {name: value for name, value in values.items() if takes_all or name in parameters}


def _read(argument: str) -> tuple[str, Any]:
    """The name and the value of an argument."""
    import yaml

    name, separator, value = argument.partition("=")
    name = name.removeprefix("--")
    if not separator or not name.isidentifier():
        raise RuleError(f"module: arguments are given as NAME=VALUE, got {shown(argument)}")
    try:
        return name, yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise RuleError(
            f"module: the value of {name} is not valid YAML: {shortened(' '.join(str(error).split()), 300)}"
        ) from error


def _object(value: Any, class_at: Callable[[str], Any]) -> Any:
    """A value in which mappings with a `class_path` are replaced by the objects that they stand for.

    Args:
        value: of an argument.
        class_at: gives the class of a path.
    """
    if isinstance(value, list):
        return [_object(each, class_at) for each in value]
    if not isinstance(value, Mapping):
        return value
    if "class_path" not in value:
        return {name: _object(each, class_at) for name, each in value.items()}
    return class_at(str(value["class_path"]))(**_object(value.get("init_args") or {}, class_at))


def _imported(path: str) -> Any:
    from lightning_hooks.rules.importing import import_object

    return import_object(path, "class_path")


def _of_record(classes: Mapping[str, type], advice: str) -> Callable[[str], type]:
    def class_at(path: str) -> type:
        if path not in classes:
            raise RuleError(
                f"module: the record names {path}, which is not a class of modules that the code of the module imports, and is "
                f"not called; {advice}"
            )
        return classes[path]

    return class_at


def _signature(kind: Any) -> str:
    try:
        return shortened(str(inspect.signature(kind).replace(return_annotation=inspect.Signature.empty)), 500)
    except (TypeError, ValueError):
        return "unknown"
