"""All trainings of the gallery: those of the modules `healthy_…` and `fault_…` of this folder."""

from __future__ import annotations

import importlib
import pkgutil

from tests.health import gallery
from tests.health.gallery.training import Training


def trainings() -> list[Training]:
    """Every training, in the order of the modules."""
    names = [module.name for module in pkgutil.iter_modules(gallery.__path__)]
    modules = [
        importlib.import_module(f"{gallery.__name__}.{name}") for name in names if name.startswith(("healthy_", "fault_"))
    ]
    return [training for module in modules for training in module.TRAININGS]


def healthy() -> list[Training]:
    """The trainings of which nothing is to be said."""
    return [training for training in trainings() if training.expects is None]


def faults() -> list[Training]:
    """The trainings with a fault."""
    return [training for training in trainings() if training.expects is not None]
