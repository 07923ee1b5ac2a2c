"""The Lightning that the user's code imports: `lightning.pytorch` or `pytorch_lightning`. Nothing else imports either.

They are two packages with the same classes under two names. Each accepts instances of its own `Callback` only where a single
callback is given, in its command line, and where it looks for overridden methods. So the callbacks of this package inherit the
`Callback` of each package that is imported. Nothing else differs: models and trainers are used as they come.

A package that the user does not import is not imported here either: whichever is imported last takes over Lightning's logger,
its category of deprecations and `warnings.formatwarning`. `pip install lightning` installs both. If neither is imported when
the callback classes are, the first import of one of them gives the classes their base. A callback that is made before that
imports the first installed package in the order of `DISTRIBUTIONS`.
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
    from lightning.pytorch import Trainer as Trainer

DISTRIBUTIONS: Final = {"lightning.pytorch": "lightning", "pytorch_lightning": "pytorch-lightning"}
"""The distribution of each package."""
_OLDEST: Final = (2, 0)
_INSTALL: Final = "pip install 'lightning-hooks[lightning]' (or [pytorch-lightning]) brings a version that was tested"
_logger = logging.getLogger("lightning_hooks")


def refuse_old(package: str) -> None:
    """Refuse a Lightning with other hooks and loops.

    Args:
        package: its name in Python; one of an unknown version is accepted.

    Raises:
        UnsupportedError: it is below version 2.
    """
    version = version_of(package)
    numbers = re.match(r"(\d+)\.(\d+)", version or "")
    if numbers and tuple(map(int, numbers.groups())) < _OLDEST:
        raise UnsupportedError(f"lightning_hooks needs Lightning 2.5 or newer, and {package} is {version}; {_INSTALL}")


def refuse_old_trainer(trainer: Trainer) -> None:
    """Refuse the Trainer of an old Lightning, beside which a newer one may be installed under the other name.

    Raises:
        UnsupportedError: as `refuse_old`.
    """
    roots = {kind.__module__.partition(".")[0] for kind in type(trainer).__mro__}
    for package in DISTRIBUTIONS:
        if package.partition(".")[0] in roots:
            refuse_old(package)


def version_of(package: str) -> str | None:
    """The installed version of a package of Lightning."""
    try:
        return importlib.metadata.version(DISTRIBUTIONS[package])
    except importlib.metadata.PackageNotFoundError:
        return None


def usable() -> list[str]:
    """The installed packages that can be used.

    Raises:
        ImportError: there is none, with the reasons.
    """
    found, reasons = [], []
    for package in DISTRIBUTIONS:
        try:
            if importlib.util.find_spec(package.partition(".")[0]) is not None:
                refuse_old(package)
                found.append(package)
        except (ImportError, ValueError) as error:
            reasons.append(_unimportable(package, error))
        except UnsupportedError as error:
            reasons.append(str(error))
    if not found:
        raise _no_lightning(reasons)
    for reason in reasons:
        _logger.info("lightning_hooks works with %s only: %s", found[0], reason)
    return found


def imported() -> dict[str, ModuleType]:
    """The packages that can be used and are imported, by name."""
    modules = {package: sys.modules.get(package) for package in usable()}
    return {package: module for package, module in modules.items() if module is not None and hasattr(module, "Callback")}


def first_usable(part: str = "") -> ModuleType:
    """The first installed package, or a module in it, imported; for callers that find none imported.

    Args:
        part: of the package, as `.cli`.

    Raises:
        ImportError: none can be imported, with the reasons.
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

        def __new__(cls, *args, **options):
            if not inherit_imported():
                first_usable()
                inherit_imported()
            return super().__new__(cls)


def inherit_imported() -> bool:
    """Make the callbacks inherit the `Callback` of each imported package. Returns whether they inherit any."""
    bases = tuple(dict.fromkeys(module.Callback for module in imported().values()))  # one if both names are of one package
    if bases and bases != Callback.__bases__:
        Callback.__bases__ = bases
    return bool(bases)


class _FirstImport(MetaPathFinder):
    """Calls `inherit_imported` after the first import of a Lightning, so that type checks hold before a callback is made.

    A command line of Lightning asks which classes inherit its `Callback` before it makes any.
    """

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname not in DISTRIBUTIONS:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        specs = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            self._call_after(spec.loader)
        return spec

    def _call_after(self, loader: Any) -> None:
        load = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            del loader.exec_module
            if inherit_imported() and self in sys.meta_path:
                sys.meta_path.remove(self)

        loader.exec_module = exec_module


def _begin() -> None:
    """Inherit what is imported; import the only installed package, or wait until one of two is imported."""
    if not inherit_imported():
        if len(usable()) == 1:
            first_usable()
            inherit_imported()
        else:
            sys.meta_path.insert(0, _FirstImport())


_begin()


def __getattr__(name: str) -> Any:
    """Look up `LightningModule` or `Trainer` in the package that is imported.

    They are only used in annotations, for which a command line of Lightning executes imports under `if TYPE_CHECKING`.
    """
    if name not in ("LightningModule", "Trainer"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(next(iter(imported().values()), None) or first_usable(), name)
