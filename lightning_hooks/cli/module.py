"""`lightning-hooks match package.Module`: builds a module and shows what `StatsMonitor()` would watch of it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lightning_hooks.errors import HooksError, RuleError, shortened, shown

if TYPE_CHECKING:
    from torch import nn

_COMMAND = "lightning-hooks match"


def match_module(arguments: list[str]) -> None:
    """Print what the default rules of a `StatsMonitor` match in a module.

    Args:
        arguments: the import path of the module, then `name=value` for each argument of the module.

    Raises:
        RuleError: there is no such module, or it cannot be built; the message says which arguments it takes.
    """
    from lightning_hooks.engine.inspecting.inspect import match

    path, *values = arguments
    if path.endswith((".yaml", ".yml")):
        raise RuleError(f"{path} looks like a config: {_COMMAND} --config {path}")
    model = built(path, values)
    configure = getattr(model, "configure_model", None)
    # Some LightningModules create their layers in `configure_model`.
    if callable(configure):
        configure()
    print(f"StatsMonitor() on {path}")
    print(match(model))


def built(path: str, arguments: Sequence[str]) -> nn.Module:
    """The module at an import path, built with arguments.

    Args:
        path: of a class, of a function that returns a module, or of a module that is built already.
        arguments: `name=value`, with values in YAML. A mapping with `class_path` and `init_args` stands for an object.

    Raises:
        RuleError: there is no such path, an argument is not `name=value`, or the module cannot be built.

    Example:
        >>> built("torch.nn.Linear", ["in_features=2", "out_features=3", "bias=false"])
        Linear(in_features=2, out_features=3, bias=False)
    """
    from torch import nn

    from lightning_hooks.rules.importing import import_object

    kind = import_object(path, "module")
    if isinstance(kind, nn.Module) and not arguments:
        return kind
    if not callable(kind):
        raise RuleError(f"module: {path} is {shown(kind)}; name a class of modules, or a function that returns a module")
    values = dict(map(_read, arguments))
    given = ", ".join(f"{name}={shown(value)}" for name, value in values.items())
    try:
        model = kind(**{name: _object(value) for name, value in values.items()})
    except HooksError:
        raise
    except Exception as error:
        reason = shortened(f"{type(error).__name__}: {error}", 500)
        raise RuleError(
            f"module: {path}({given}) raises {reason}. Its arguments are {_signature(kind)}; give them as "
            f"`{_COMMAND} {path} name=value`"
        ) from error
    if not isinstance(model, nn.Module):
        raise RuleError(f"module: {path}({given}) gives {shown(model)}, not a torch.nn.Module")
    return model


def _read(argument: str) -> tuple[str, Any]:
    """The name and the value of an argument."""
    import yaml

    name, separator, value = argument.partition("=")
    name = name.removeprefix("--")
    if not separator or not name.isidentifier():
        raise RuleError(f"module: arguments are given as name=value, got {shown(argument)}")
    try:
        return name, yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise RuleError(
            f"module: the value of {name} is not valid YAML: {shortened(' '.join(str(error).split()), 300)}"
        ) from error


def _object(value: Any) -> Any:
    """A value in which mappings with a `class_path` are replaced by the objects that they stand for."""
    from lightning_hooks.rules.importing import import_object

    if isinstance(value, list):
        return [_object(each) for each in value]
    if not isinstance(value, Mapping):
        return value
    if "class_path" not in value:
        return {name: _object(each) for name, each in value.items()}
    kind = import_object(str(value["class_path"]), "class_path")
    return kind(**_object(value.get("init_args") or {}))


def _signature(kind: Any) -> str:
    try:
        return shortened(str(inspect.signature(kind).replace(return_annotation=inspect.Signature.empty)), 500)
    except (TypeError, ValueError):
        return "unknown"
