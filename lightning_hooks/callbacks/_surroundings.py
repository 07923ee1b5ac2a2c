"""What a Trainer knows of the code around its model, for lookouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lightning_hooks.callbacks._planned import planned_of
from lightning_hooks.callbacks._trainer import (
    batches_of_epoch,
    deferred,
    has_checkpoint,
    loaders_of,
    optimizers_of,
    overfits,
    schedules_of,
)
from lightning_hooks.engine.lookouts.surroundings import Surroundings

if TYPE_CHECKING:
    from lightning_hooks.callbacks._lightning import Trainer
    from lightning_hooks.callbacks._run import LightningRun


def surroundings_of(trainer: Trainer, run: LightningRun, saved: Callable[[], Any]) -> Surroundings:
    """The code around the model of a fit.

    Args:
        trainer: the Trainer.
        run: the fit.
        saved: returns what the checkpoint kept from which the fit goes on.
    """
    return Surroundings.of(
        run.model,
        deferred(trainer, optimizers_of, ()),
        schedules=deferred(trainer, schedules_of, ()),
        saved=saved,
        is_resumed=deferred(trainer, has_checkpoint, False),
        knows_batches=True,
        loaders=deferred(trainer, loaders_of, ()),
        overfits=overfits(trainer),
        planned=deferred(trainer, planned_of, ()),
        batches=deferred(trainer, batches_of_epoch, 0),
    )
