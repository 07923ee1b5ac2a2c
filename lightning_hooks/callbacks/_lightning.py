"""The Lightning that the user's code imports: `lightning.pytorch` or `pytorch_lightning`. Only this file imports either.

The two packages have the same classes under two names. In three places each accepts only instances of its own `Callback`: if a
single callback is given, in its command line, and where it looks for overridden methods. So the callbacks of this package
inherit the `Callback` of every package that is imported. Models and trainers of both are used without a difference.

A package that the user does not import is not imported here either: a plain loop needs none, and of two packages the one that
is imported last takes over Lightning's logger, its category of deprecations and `warnings.formatwarning`. `pip install
lightning` installs both. The import of each gives the callback classes, and the callbacks that exist already, their base.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import logging
import re
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from lightning_hooks.errors import UnsupportedError

if TYPE_CHECKING:
    from lightning.pytorch import Callback as Callback
    from lightning.pytorch import LightningModule as LightningModule

    from lightning_hooks.callbacks._trainer_type import Trainer as Trainer

DISTRIBUTIONS: Final = {"lightning.pytorch": "lightning", "pytorch_lightning": "pytorch-lightning"}
"""The distribution of each package."""
_OLDEST: Final = (2, 0)  # major and minor version
_INSTALL: Final = "pip install 'lightning-hooks[lightning]' (or [pytorch-lightning]) brings a version that was tested"
_logger = logging.getLogger("lightning_hooks")


def refuse_old(package: str) -> None:
    """Refuse a Lightning with other hooks and loops.

    Args:
        package: the name of the package in Python. A package of an unknown version is accepted.

    Raises:
        UnsupportedError: the version is below 2.
    """
    version = version_of(package)
    numbers = re.match(r"(\d+)\.(\d+)", version or "")
    if numbers and tuple(map(int, numbers.groups())) < _OLDEST:
        raise UnsupportedError(f"lightning_hooks needs Lightning 2.5 or newer, and {package} is {version}; {_INSTALL}")


def refuse_old_trainer(trainer: Trainer) -> None:
    """Refuse the Trainer of an old Lightning. A newer Lightning may be installed beside it under the other name.

    Raises:
        UnsupportedError: as `refuse_old`.
    """
    roots = {kind.__module__.partition(".")[0] for kind in type(trainer).__mro__}
    for package in DISTRIBUTIONS:
        if package.partition(".")[0] in roots:
            refuse_old(package)


def version_of(package: str) -> str | None:
    """The installed version of a package of Lightning; None if it is not installed."""
    try:
        return importlib.metadata.version(DISTRIBUTIONS[package])
    except importlib.metadata.PackageNotFoundError:
        return None


def usable() -> list[str]:
    """The installed packages that can be used.

    Raises:
        ImportError: there is no such package; the message names the reasons.
    """
    packages, reasons = [], []
    for package in DISTRIBUTIONS:
        try:
            if importlib.util.find_spec(package.partition(".")[0]) is not None:
                refuse_old(package)
                packages.append(package)
        except (ImportError, ValueError) as error:
            reasons.append(_unimportable(package, error))
        except UnsupportedError as error:
            reasons.append(str(error))
    if not packages:
        raise _no_lightning(reasons)
    for reason in reasons:
        _logger.info("lightning_hooks works with %s only: %s", packages[0], reason)
    return packages


def imported() -> dict[str, ModuleType]:
    """The packages that are imported, by name."""
    modules = {package: sys.modules.get(package) for package in DISTRIBUTIONS}
    return {package: module for package, module in modules.items() if module is not None and hasattr(module, "Callback")}


def first_usable(part: str = "") -> ModuleType:
    """Import the first usable package, or a module in it; for callers if no package is imported yet.

    Args:
        part: the module in the package, for example `.cli`; empty for the package itself.

    Raises:
        ImportError: no package can be imported; the message names the reasons.
    """
    reasons = []
    for package in usable():
        try:
            return importlib.import_module(package + part)
        except (ImportError, ValueError) as error:
            reasons.append(_unimportable(package, error))
    raise _no_lightning(reasons)


def _unimportable(package: str, error: Exception) -> str:
    return f"{package} cannot be imported: {error}"


def _no_lightning(reasons: Sequence[str]) -> ImportError:
    reasons = reasons or [f"neither lightning nor pytorch_lightning is installed; {_INSTALL}"]
    return ImportError(f"the callbacks need Lightning: {'; '.join(reasons)}")


if not TYPE_CHECKING:

    class _NoLightning:
        """The base of the callbacks until a Lightning is imported."""

    class Callback(_NoLightning):
        """A callback of every imported Lightning."""


def inherit_imported() -> None:
    """Make the callbacks inherit the `Callback` of each imported package."""
    # Both names may stand for the same package, so remove duplicates.
    bases = tuple(dict.fromkeys(module.Callback for module in imported().values()))
    if bases and bases != Callback.__bases__:
        Callback.__bases__ = bases


class _Imports(MetaPathFinder):
    """Calls `inherit_imported` after each import of a Lightning.

    Nothing of ours is called between that import and the places that look for the base: `Trainer(callbacks=callback)` looks at
    a callback that exists already, and a command line of Lightning at the classes before it creates any.
    """

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname not in DISTRIBUTIONS:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        specs = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            _call_after(spec.loader)
        return spec


def _call_after(loader: Any) -> None:
    load = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        load(module)
        del loader.exec_module
        inherit_imported()

    loader.exec_module = exec_module


inherit_imported()
sys.meta_path.insert(0, _Imports())


def __getattr__(name: str) -> Any:
    """Look up `LightningModule` or `Trainer` in the package that is imported.

    They are used only in annotations. A command line of Lightning executes imports under `if TYPE_CHECKING` to read these.
    """
    if name not in ("LightningModule", "Trainer"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(next(iter(imported().values()), None) or first_usable(), name)
