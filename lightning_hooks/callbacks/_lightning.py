"""The installed Lightning: `lightning.pytorch`, `pytorch_lightning`, or both. Nothing else imports either.

They are two packages with the same classes under two names. Each accepts instances of its own `Callback` only where a single
callback is given, in its command line, and where it looks for overridden methods. So the callbacks of this package inherit the
`Callback` of every installed one. Nothing else differs: models and trainers are used as they come.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import logging
import re
from typing import TYPE_CHECKING, Any, Final

from lightning_hooks.errors import UnsupportedError

if TYPE_CHECKING:
    from lightning.pytorch import Callback as Callback
    from lightning.pytorch import Trainer

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


def installed(part: str = "") -> dict[str, Any]:
    """The installed packages by name, or a module in each, imported.

    Args:
        part: of the package, as `.cli`.

    Raises:
        ImportError: there is none that can be used, with the reasons.
    """
    found, reasons = {}, []
    for package in DISTRIBUTIONS:
        try:
            if importlib.util.find_spec(package.partition(".")[0]) is None:
                continue
            refuse_old(package)
            found[package] = importlib.import_module(package + part)
        except (ImportError, ValueError, UnsupportedError) as error:
            reasons.append(str(error) if isinstance(error, UnsupportedError) else f"{package} cannot be imported: {error}")
    if not found:
        reasons = reasons or [f"neither lightning nor pytorch_lightning is installed; {_INSTALL}"]
        raise ImportError(f"the callbacks need Lightning: {'; '.join(reasons)}")
    for reason in reasons:
        _logger.info("lightning_hooks works with %s only: %s", next(iter(found)), reason)
    return found


if not TYPE_CHECKING:
    # One class where both names are of one package.
    _classes = dict.fromkeys(module.Callback for module in installed().values())

    class Callback(*_classes):
        """A callback of every installed Lightning."""
