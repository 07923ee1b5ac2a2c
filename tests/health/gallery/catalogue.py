"""All trainings of the gallery: those of the modules of this package named `healthy_*` and `fault_*`."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

import tests.health.gallery as gallery
from tests.health.gallery.training import Training


def _trainings(prefix: str) -> list[Training]:
    names = sorted(found.name for found in iter_modules(gallery.__path__) if found.name.startswith(prefix))
    return [training for name in names for training in import_module(f"{gallery.__name__}.{name}").TRAININGS]


def healthy() -> list[Training]:
    """Trainings of which no rule may say anything."""
    return _trainings("healthy_")


def faulty() -> list[Training]:
    """Trainings each of which has one planted fault."""
    return _trainings("fault_")
