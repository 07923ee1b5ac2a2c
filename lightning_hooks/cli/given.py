"""The classes that a flight record may name: those of the user's own code. A record is data, and imports nothing.

A replay needs the classes of the batch, and of modules among the hyperparameters. The user names one class or function, by
`--module` or by a config. What its code has imported by then is the user's choice; a name in the record is only looked up.
"""

from __future__ import annotations

import dataclasses
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any

from lightning_hooks.errors import RuleError, shown

_LIBRARIES = frozenset({*sys.stdlib_module_names, "torch", "lightning", "pytorch_lightning", "lightning_hooks"})


def container_classes(kinds: Iterable[Any], named: Iterable[str] = ()) -> dict[str, type]:
    """The classes of containers that the code of some classes or functions defines or imports by name.

    Args:
        kinds: classes or functions that the user has named.
        named: import paths of further classes that the user has named.

    Returns:
        The classes by their import paths. A class of the module that defines one of `kinds` also has the path that it has if
        that module is run as a script.

    Raises:
        RuleError: a path in `named` is not that of a class, or its objects can be called.
    """
    from lightning_hooks.rules.importing import import_object

    found = _classes_of([*kinds], _is_container)
    for path in named:
        kind = import_object(path, "--class")
        if not isinstance(kind, type) or _is_of_functions(kind):
            raise RuleError(f"--class: {path} must be the class of a batch, not of a function or a module, got {shown(kind)}")
        found |= {path: kind, _path(kind): kind, f"__main__.{kind.__qualname__}": kind}
    return found


def module_classes(kinds: Iterable[Any]) -> dict[str, type]:
    """The classes of modules that the code of some classes or functions defines or imports by name, and those of `torch.nn`."""
    from torch import nn

    def is_module(kind: type) -> bool:
        return issubclass(kind, nn.Module)

    return {**_visible(nn, is_module), **_classes_of([*kinds], is_module)}


def _classes_of(kinds: list[Any], fits: Callable[[type], bool]) -> dict[str, type]:
    bases = {base for kind in kinds for base in getattr(kind, "__mro__", [kind])}
    homes = {kind.__module__ for kind in kinds}
    packages = {base.__module__.partition(".")[0] for base in bases} - _LIBRARIES
    found: dict[str, type] = {}
    for name, module in [*sys.modules.items()]:
        if isinstance(module, ModuleType) and (name in homes or name.partition(".")[0] in packages):
            found |= _visible(module, fits)
    own = {f"__main__.{kind.__qualname__}": kind for kind in found.values() if kind.__module__ in homes}
    return {**own, **found}


def _visible(module: ModuleType, fits: Callable[[type], bool]) -> dict[str, type]:
    """The classes in the namespace of a module, and the classes inside them, by import path."""
    found: dict[str, type] = {}
    for name, value in _names(vars(module)):
        if str(value.__module__).partition(".")[0] in sys.stdlib_module_names:
            continue
        inner = [each for _, each in _names(vars(value))] if value.__module__ == module.__name__ else []
        found |= {_path(kind): kind for kind in (value, *inner) if fits(kind)}
        found |= {f"{module.__name__}.{name}": value} if fits(value) else {}
    return found


def _names(namespace: Mapping[str, Any]) -> Iterator[tuple[str, type]]:
    return ((name, value) for name, value in [*namespace.items()] if isinstance(value, type))


def _is_container(kind: type) -> bool:
    return issubclass(kind, (Mapping, list, tuple, deque)) or dataclasses.is_dataclass(kind)


def _is_of_functions(kind: type) -> bool:
    return any("__call__" in vars(base) for base in kind.__mro__)


def _path(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
