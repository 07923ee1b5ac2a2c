"""What looks at the code around the model: one file for each part of it, with the classes of its lookouts in `LOOKOUTS`."""

from __future__ import annotations

from collections.abc import Iterable

from lightning_hooks.engine.lookouts import (
    accumulation,
    averages,
    batches,
    cleared,
    clearing,
    clipping,
    evaluations,
    frozen_norms,
    inputs,
    leftovers,
    loss_inputs,
    loss_lines,
    loss_shapes,
    memory,
    norm_pace,
    rates,
    relabelled,
    resume,
    rows,
    schedules,
    settings,
    targets,
    ties,
    unregistered,
    waiting,
)
from lightning_hooks.engine.lookouts.surroundings import Surroundings
from lightning_hooks.engine.participants.lookout import Lookout

_FILES = (
    clearing,
    cleared,
    leftovers,
    clipping,
    accumulation,
    resume,
    memory,
    rows,
    batches,
    targets,
    relabelled,
    waiting,
    frozen_norms,
    averages,
    norm_pace,
    evaluations,
    ties,
    unregistered,
    rates,
    schedules,
    settings,
    loss_shapes,
    loss_inputs,
    loss_lines,
    inputs,
)


def lookouts_of(surroundings: Surroundings, kinds: Iterable[str]) -> list[Lookout]:
    """The lookouts of a run.

    Args:
        surroundings: what is around the model.
        kinds: of the sightings that are asked for.
    """
    asked = {*kinds}
    return [lookout(surroundings) for file in _FILES for lookout in file.LOOKOUTS if asked.intersection(lookout.kinds)]
