"""Import of the object that a dotted path in a rule names."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from lightning_hooks.errors import RuleError, did_you_mean, shown


def import_object(path: str, where: str) -> Any:
    """The object at an import path: a module's attribute, an attribute of that, or a module.

    Args:
        path: `package.module.name`.
        where: the option that holds the path, for messages.

    Raises:
        RuleError: the path does not exist (the message has the nearest names), or the import raises (it has the error).

    Example:
        >>> import_object("math.sqrt", "stats")(4.0)
        2.0
    """
    parts = path.split(".")
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        raise RuleError(f"{where} must be an import path such as 'package.module.name', got {shown(path)}")
    target: Any = _module(parts[0], path, where)
    if target is None:
        raise RuleError(f"{where}: cannot import {path!r}: there is no module {parts[0]!r}")
    for end, name in enumerate(parts[1:], start=2):
        # Look up an attribute first, then a module that is not imported yet, as `from package import name` does.
        if hasattr(target, name):
            target = getattr(target, name)
            continue
        submodule = _module(".".join(parts[:end]), path, where) if isinstance(target, ModuleType) else None
        if submodule is None:
            hint = did_you_mean(name, [public for public in dir(target) if not public.startswith("_")])
            holder = ".".join(parts[: end - 1])
            raise RuleError(f"{where}: cannot import {path!r}: {holder} has no {name!r}{hint}")
        target = submodule
    return target


def _module(name: str, path: str, where: str) -> ModuleType | None:
    """The module of that name, imported; None if it does not exist."""
    try:
        return importlib.import_module(name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == name:
            return None
        # The module exists, but its code raises. Include the error in the message, so that its author can find the cause.
        reason = f"{type(error).__name__}: {error}"
        raise RuleError(f"{where}: cannot import {path!r}: importing {name} raises {reason}") from error
