"""The schedules that a Trainer advances, and how often it will do so in the whole fit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lightning_hooks.callbacks._trainer import is_quick, last_step
from lightning_hooks.engine.lookouts.planned import Planned

if TYPE_CHECKING:
    from lightning_hooks.callbacks._lightning import Trainer


def planned_of(trainer: Trainer) -> Sequence[Planned]:
    """The schedules of a Trainer; none if the module advances them itself, or the length of the fit is unknown."""
    module, steps, batches = trainer.lightning_module, last_step(trainer), trainer.num_training_batches
    if steps is None or is_quick(trainer) or not module.automatic_optimization or _advances_itself(module):
        return ()
    if not math.isfinite(batches) or batches <= 0:
        return ()
    accumulate = trainer.accumulate_grad_batches
    epochs = math.ceil(steps / math.ceil(batches / accumulate))
    configs: Sequence[Any] = getattr(trainer, "lr_scheduler_configs", ())
    return [
        Planned(
            each.scheduler,
            each.interval == "epoch",
            epochs // each.frequency if each.interval == "epoch" else _advances(steps, each.frequency, accumulate),
            steps,
            epochs if epochs == trainer.max_epochs else None,
            accumulate,
        )
        for each in configs
        if not each.reduce_on_plateau and each.interval in ("epoch", "step") and each.frequency > 0
    ]


def _advances(steps: int, frequency: int, accumulate: int) -> int:
    """The advances of a schedule of steps, for which Lightning counts batches: at those that it steps after."""
    return steps * accumulate // math.lcm(frequency, accumulate)


def _advances_itself(module: Any) -> bool:
    defined_in: str = type(module).lr_scheduler_step.__module__
    return defined_in.partition(".")[0] not in ("lightning", "pytorch_lightning")
