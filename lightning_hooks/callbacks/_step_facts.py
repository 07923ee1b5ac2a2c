"""The facts of the steps of a fit, beside what is measured: of the model, its optimizers, and how the Trainer trains."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

from torch import nn

from lightning_hooks.callbacks._trainer import deferred, follows_metric, last_step, optimizers_of
from lightning_hooks.engine.participants.facts import ModelFacts
from lightning_hooks.engine.running.hook_manager import HookManager
from lightning_hooks.records.facts import StepFacts

if TYPE_CHECKING:
    from lightning_hooks.callbacks._lightning import Trainer


class TrainerFacts:
    """Notes the facts of each step of a fit.

    Args:
        trainer: returns the Trainer; None if it was garbage-collected.
        hook_manager: knows the step under way.

    Attributes:
        apart: the names of the parameters that differed between ranks when they were compared last.
        validating: the names of the modules that were in training mode in the last validation; None before the first.
    """

    def __init__(self, trainer: Callable[[], Trainer | None], hook_manager: HookManager) -> None:
        self.apart: tuple[str, ...] = ()
        self.validating: tuple[str, ...] | None = None
        self._trainer = trainer
        self._hook_manager = hook_manager
        # The step at which `note` last read the facts, and these facts.
        self._noted: tuple[int | None, StepFacts] = (None, StepFacts())

    @cached_property
    def of_model(self) -> ModelFacts:
        """The structure of the model, and the facts of it that change from step to step."""
        trainer = self._trainer()
        model: nn.Module = self._hook_manager.model
        return ModelFacts(model, (lambda: ()) if trainer is None else deferred(trainer, optimizers_of, ()))

    def forget_replaced(self) -> None:
        """Look up the parameters and modules of the model again for the facts of the next step."""
        if "of_model" in vars(self):
            self.of_model.forget()

    def note(self) -> None:
        """Note the facts of the step under way before its first optimizer steps: a scheduler may change them until it ends."""
        step = self._hook_manager.step
        if self._noted[0] != step:
            self._noted = step, self._now()

    def of_step(self) -> StepFacts:
        """The facts of the training step that ends."""
        step, facts = self._noted
        return facts if step is not None and step == self._hook_manager.step else self._now()

    def _now(self) -> StepFacts:
        trainer = self._trainer()
        if trainer is None:
            return StepFacts()
        return self.of_model.of_step(
            precision=str(trainer.precision),
            accumulate=trainer.accumulate_grad_batches,
            last_step=last_step(trainer),
            apart=self.apart,
            validating=self.validating,
            follows_metric=follows_metric(trainer),
        )
