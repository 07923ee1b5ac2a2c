"""A fit of this package's own: it takes one batch, and ends before its first step."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from typing_extensions import override

from lightning_hooks.callbacks._lightning import Callback
from lightning_hooks.callbacks._silence import silent_lightning
from lightning_hooks.callbacks._trainer_training import TrainerTraining

if TYPE_CHECKING:
    from lightning_hooks.callbacks._lightning import LightningModule, Trainer

T = TypeVar("T")
Act = Callable[[TrainerTraining, Any, int], T]
"""Called with the training, the batch on its device, and the number of the batch."""


def at_first_batch(
    make: Callable[[Callback], Trainer],
    fit: Callable[[Trainer], object],
    act: Act[T],
    prepare: Callable[[Trainer, LightningModule], None] = lambda trainer, module: None,
    *,
    accumulates: bool = False,
) -> T | None:
    """Begin a fit, and act on its first batch instead of training it.

    Args:
        make: makes the Trainer, with the given callback.
        fit: calls the method `fit` of the Trainer.
        act: runs steps on the batch.
        prepare: called with the Trainer and the module when the optimizers exist.
        accumulates: as of `TrainerTraining`.

    Returns:
        What `act` returned; None if the loader gave no batch.
    """
    callback = _AtFirstBatch(act, prepare, accumulates)
    with silent_lightning():
        trainer = make(callback)
        try:
            fit(trainer)
        except _Finished:
            pass
    result: T | None = callback.result
    return result


class _Finished(Exception):
    """Ends the fit before its first step."""


class _AtFirstBatch(Callback):
    def __init__(self, act: Act[Any], prepare: Callable[[Trainer, LightningModule], None], accumulates: bool) -> None:
        self._act, self._prepare, self._accumulates = act, prepare, accumulates
        self.result: Any = None

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._prepare(trainer, pl_module)

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self.result = self._act(TrainerTraining(trainer, pl_module, accumulates=self._accumulates), batch, batch_idx)
        raise _Finished
