"""All trainings of the gallery: those of the modules of this package named `healthy_*` and `fault_*`."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

import galleries.health as gallery
from galleries.health.training import Training

NAMED = (
    *("one-head-dead", "layer-dies-later", "tanh-of-huge-biases", "half-of-the-units-dead"),
    *("pixels-to-255", "features-far-from-zero", "infinite-batch"),
    *("detached-encoder", "hook-returns-zero", "codes-by-argmin", "clipped-to-nothing"),
    *("layer-three-times-too-wide", "all-layers-too-large", "sum-for-mean", "padding-mask-inverted"),
    *("norms-in-evaluation", "stops-being-called", "nan-planted", "log-of-zero", "half-scores-overflow"),
    *("group-forgotten", "stranger-beside", "group-of-zero", "head-replaced"),
    *("rate-times-five-of-sgd", "rate-spike", "rate-times-hundred", "decay-of-ten", "one-expert-takes-all"),
)
"""Faults of every family but `ranks`."""


def _trainings(prefix: str) -> list[Training]:
    names = sorted(found.name for found in iter_modules(gallery.__path__) if found.name.startswith(prefix))
    return [training for name in names for training in import_module(f"{gallery.__name__}.{name}").TRAININGS]


def healthy() -> list[Training]:
    """Trainings of which no rule may say anything."""
    return _trainings("healthy_")


def faulty() -> list[Training]:
    """Trainings each of which has one planted fault."""
    return _trainings("fault_")
