"""Runs the step of a flight record again: a Trainer trains one batch, with the precision, clipping and scaler of the run."""

from __future__ import annotations

import copy
import hashlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from typing_extensions import override

from lightning_hooks.callbacks._lightning import Callback, imported
from lightning_hooks.callbacks._one_batch import OneBatch, precision_arguments, set_counts
from lightning_hooks.callbacks._silence import silent_lightning
from lightning_hooks.callbacks._training_step import tensor_loss_of
from lightning_hooks.engine.recording.bad_tensors import BadTensor, Watched
from lightning_hooks.engine.recording.examination import Examination, bad_tensor_without_mode, run_step
from lightning_hooks.engine.recording.explaining import Autopsy
from lightning_hooks.engine.recording.origins import OriginMap
from lightning_hooks.engine.recording.provenance import StoppedEarly
from lightning_hooks.errors import RuleError, shortened, shown
from lightning_hooks.snapshot.generators import Generators

if TYPE_CHECKING:
    from lightning_hooks.callbacks._lightning import LightningModule, Trainer


@dataclass(frozen=True)
class Kept:
    """What a step is replayed from.

    Args:
        batch: the batch.
        context: of the record: precision, clipping, the indices of the batch and the epoch; `check_context` has checked it.
        generators: the states of the generators when the step began; None if they were not kept.
        load_weights: writes parameters and buffers into the module; called when the Trainer has made the optimizers.
        optimizers: the state of each optimizer; empty if it was not kept.
        limit: seconds for the run under the dispatch mode.
    """

    batch: Any
    context: Mapping[str, Any]
    generators: Generators | None
    load_weights: Callable[[nn.Module], None]
    optimizers: Sequence[Mapping[str, Any]] = ()
    limit: float = 600.0


@dataclass(frozen=True)
class Outcome:
    """What one run of the step gave.

    Args:
        noticed: what was not finite, in words; empty if nothing was.
        digest: of the loss, the gradients and the parameters, bit for bit.
        error: the exception that ended the run; empty if there was none.
    """

    noticed: str
    digest: str
    error: str


@dataclass(frozen=True)
class Replayed:
    """Two runs of the step as it is, and one that names the operation.

    Args:
        first: the first run.
        second: the second run.
        found: what the third run shows.
        notes: what could not be made as in the run that was recorded.
    """

    first: Outcome
    second: Outcome
    found: Autopsy
    notes: tuple[str, ...] = ()

    @property
    def is_reproducible(self) -> bool:
        """Whether both runs gave the same numbers, bit for bit, or the same exception."""
        return self.first == self.second

    @property
    def is_reproduced(self) -> bool:
        """Whether the numbers were bad again, or an exception ended the step."""
        return bool(self.first.noticed or self.first.error or self.found.reproduced)


def replay(model: nn.Module, kept: Kept) -> Replayed:
    """Train one batch three times, each time with a copy of the module.

    Args:
        model: a LightningModule as it is built; it is not changed.
        kept: what the step is replayed from.

    Raises:
        RuleError: it is no LightningModule.
    """
    package = _package_of(model)
    notes: list[str] = []
    first, second = (_run(package, copy.deepcopy(model), _Observer(kept), notes) for _ in range(2))
    examiner = _Examiner(kept)
    _run(package, copy.deepcopy(model), examiner, notes)
    return Replayed(first.outcome, second.outcome, examiner.found, tuple(dict.fromkeys(notes)))


def _package_of(model: nn.Module) -> ModuleType:
    for module in imported().values():
        if isinstance(model, module.LightningModule):
            return module
    raise RuleError(f"replay needs a LightningModule, got {shown(type(model))}")


class _OneStep(Callback):
    """Puts a module and its optimizers into the state of the record, and lets one batch run."""

    def __init__(self, kept: Kept) -> None:
        self.kept = kept
        self.error = ""
        self.has_begun = False
        self.notes: list[str] = []

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.kept.load_weights(pl_module)
        # An optimizer takes over the tensors that it loads, and changes them.
        for optimizer, state in zip(trainer.optimizers, copy.deepcopy(list(self.kept.optimizers)), strict=False):
            optimizer.load_state_dict(dict(state))
        if not self.kept.optimizers:
            self._set_rates(trainer.optimizers)
        elif len(trainer.optimizers) != len(self.kept.optimizers):
            self.notes.append(
                f"the module has {len(trainer.optimizers)} optimizers, and the record {len(self.kept.optimizers)}"
            )

    def _set_rates(self, optimizers: Sequence[Optimizer]) -> None:
        recorded = self.kept.context.get("optimizers") or {}
        for optimizer, rates in zip(optimizers, recorded.values(), strict=False):
            for group, rate in zip(optimizer.param_groups, rates, strict=False):
                group["lr"] = float(rate)

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self.has_begun = True
        if self.kept.generators is not None:
            self.kept.generators.restore()

    def fit_raised(self, error: BaseException) -> None:
        """The fit ended with an exception."""
        self.error = shortened(f"{type(error).__name__}: {error}", 500)


class _Observer(_OneStep):
    """Notes what a step gives, and does not take part in it."""

    def __init__(self, kept: Kept) -> None:
        super().__init__(kept)
        self._bad_tensor: BadTensor | None = None
        self._digest = ""

    @property
    def outcome(self) -> Outcome:
        return Outcome("" if self._bad_tensor is None else self._bad_tensor.shown, self._digest, self.error)

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        loss, optimizers = tensor_loss_of(outputs), trainer.optimizers
        self._bad_tensor = bad_tensor_without_mode(pl_module, optimizers, loss)
        self._bad_tensor = self._bad_tensor or Watched(pl_module, optimizers).bad_parameters(OriginMap())
        parameters = list(pl_module.parameters())
        self._digest = _digest([loss, *(each.grad for each in parameters), *parameters])


class _Examiner(_OneStep):
    """Looks at every operator between the start and the end of the batch."""

    def __init__(self, kept: Kept) -> None:
        super().__init__(kept)
        self.found = Autopsy(reproduced=False, notes=("the step did not begin",))
        self._examination: Examination | None = None
        self._stack = ExitStack()

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_start(trainer, pl_module, batch, batch_idx)
        self._examination = Examination(pl_module, batch, trainer.optimizers, self.kept.limit)
        self._stack.enter_context(self._examination.following())

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._stack.close()
        self._conclude(tensor_loss_of(outputs))

    @override
    def fit_raised(self, error: BaseException) -> None:
        super().fit_raised(error)
        # The block of the examination notes the exception.
        if self._examination is not None and self._stack.__exit__(type(error), error, error.__traceback__):
            self._conclude(None)

    def _conclude(self, loss: Tensor | None) -> None:
        assert self._examination is not None
        bad = self._examination.after_step(loss) or self._examination.after_update()
        self.found = self._examination.autopsy(bad)


Step = TypeVar("Step", bound=_OneStep)


def _run(package: ModuleType, model: Any, step: Step, notes: list[str]) -> Step:
    context = step.kept.context
    # The batch is as the training step got it: transfers must not transform it once more, and nothing is downloaded.
    model.on_before_batch_transfer = model.on_after_batch_transfer = lambda batch, dataloader_idx: batch
    model.configure_callbacks, model.prepare_data = list, lambda: None
    with tempfile.TemporaryDirectory() as folder, silent_lightning():
        trainer = _trainer(package, step, folder, notes)
        set_counts(trainer, context.get("epoch") or 0, context.get("global_step") or 0)
        data = OneBatch(step.kept.batch, context.get("batch_idx") or 0)
        data.trainer = trainer
        try:
            run_step(lambda: trainer.fit(model, train_dataloaders=data))
        except (Exception, StoppedEarly, SystemExit) as error:
            if not step.has_begun:
                raise _not_set_up(error) from error
            step.fit_raised(error)
    notes += step.notes
    return step


def _trainer(package: ModuleType, step: _OneStep, folder: str, notes: list[str]) -> Any:
    context = step.kept.context
    try:
        return package.Trainer(
            callbacks=[step],
            default_root_dir=folder,
            devices=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            limit_val_batches=0,
            num_sanity_val_steps=0,
            log_every_n_steps=1,
            max_epochs=(context.get("epoch") or 0) + 1,
            gradient_clip_val=context.get("gradient_clip_val"),
            gradient_clip_algorithm=context.get("gradient_clip_algorithm"),
            accumulate_grad_batches=context.get("accumulate_grad_batches") or 1,
            **precision_arguments(package, context, notes),
        )
    except Exception as error:
        raise _not_set_up(error) from error


def _not_set_up(error: BaseException) -> RuleError:
    if isinstance(error, RuleError):
        return error
    return RuleError(f"the training could not be set up again: {shortened(f'{type(error).__name__}: {error}', 500)}")


def _digest(tensors: Sequence[Tensor | None]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        if tensor is None or tensor.layout is not torch.strided:
            digest.update(b"none")
        else:
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
