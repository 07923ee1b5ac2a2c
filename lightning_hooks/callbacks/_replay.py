"""Runs the step of a flight record again: a Trainer trains one batch, with the precision, clipping and scaler of the run."""

from __future__ import annotations

import copy
import hashlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_hooks.callbacks._lightning import imported
from lightning_hooks.callbacks._own_fit import at_first_batch
from lightning_hooks.callbacks._record_trainer import fit_one_batch, trainer_of_record
from lightning_hooks.callbacks._trainer_training import TrainerTraining
from lightning_hooks.engine.recording.bad_tensors import CheckedTensors
from lightning_hooks.engine.recording.examination import Examination, bad_tensor_without_mode, run_step
from lightning_hooks.engine.recording.explaining import Autopsy
from lightning_hooks.engine.recording.fingerprints import StepRun, followed
from lightning_hooks.engine.recording.origins import OriginMap
from lightning_hooks.engine.rerun.start import StartingPoint
from lightning_hooks.errors import RuleError, listed, shortened, shown
from lightning_hooks.snapshot.generators import Generators
from lightning_hooks.snapshot.lending import UntouchableError

if TYPE_CHECKING:
    from lightning_hooks.callbacks._lightning import LightningModule, Trainer

T = TypeVar("T")


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
    """Train one batch three times, each time from the same state.

    Args:
        model: a LightningModule as it is built; it is not changed.
        kept: what the step is replayed from.

    Raises:
        RuleError: it is no LightningModule, or the step may use what cannot be restored between the runs.
    """
    return _at_its_batch(model, kept, _run_three_times)


def operators_of(model: nn.Module, kept: Kept, times: int) -> tuple[list[StepRun], tuple[str, ...]]:
    """The operators of a step, of each of several runs from the same state, with what could not be made as in the record.

    Args:
        model: as of `replay`.
        kept: likewise.
        times: how often the step runs.

    Raises:
        RuleError: as of `replay`.
    """
    return _at_its_batch(model, kept, partial(_follow, times))


def _at_its_batch(model: nn.Module, kept: Kept, act: Callable[[Kept, list[str], TrainerTraining, Any, int], T]) -> T:
    """Set the training of a record up again, and act on its batch."""
    package = _package_of(model)
    notes: list[str] = []
    try:
        with tempfile.TemporaryDirectory() as folder:
            result = at_first_batch(
                lambda callback: trainer_of_record(package, kept.context, callback, folder, notes),
                lambda trainer: fit_one_batch(trainer, copy.deepcopy(model), kept.batch, kept.context.get("batch_idx") or 0),
                partial(act, kept, notes),
                partial(_load, kept, notes),
                accumulates=True,
            )
    except Exception as error:
        raise _not_set_up(error) from error
    if result is None:
        raise RuleError("the training could not be set up again: the fit ended before its first batch")
    return result


def _package_of(model: nn.Module) -> ModuleType:
    for module in imported().values():
        if isinstance(model, module.LightningModule):
            return module
    raise RuleError(f"replay needs a LightningModule, got {shown(type(model))}")


def _load(kept: Kept, notes: list[str], trainer: Trainer, module: LightningModule) -> None:
    """Write the weights and the states of the optimizers of a record into a training."""
    kept.load_weights(module)
    # An optimizer takes over the tensors that it loads, and changes them.
    for optimizer, state in zip(trainer.optimizers, copy.deepcopy(list(kept.optimizers)), strict=False):
        optimizer.load_state_dict(dict(state))
    if not kept.optimizers:
        _set_rates(trainer.optimizers, kept.context.get("optimizers") or {})
    elif len(trainer.optimizers) != len(kept.optimizers):
        notes.append(f"the module has {len(trainer.optimizers)} optimizers, and the record {len(kept.optimizers)}")


def _set_rates(optimizers: Sequence[Optimizer], recorded: Mapping[str, Sequence[float]]) -> None:
    for optimizer, rates in zip(optimizers, recorded.values(), strict=False):
        for group, rate in zip(optimizer.param_groups, rates, strict=False):
            group["lr"] = float(rate)


class _Runs:
    """Runs of the step of a record, each from the same state.

    Args:
        kept: what the step is replayed from.
        training: that was set up again.
        batch: on its device.
        batch_idx: its number.
    """

    def __init__(self, kept: Kept, training: TrainerTraining, batch: Any, batch_idx: int) -> None:
        self._kept, self._training, self._batch, self._batch_idx = kept, training, batch, batch_idx
        self._start = StartingPoint(training)
        if self._start.unrestorable:
            named = listed(self._start.unrestorable, 3)
            raise RuleError(f"the step may use {named}, which cannot be restored between its runs")

    def run(self, act: Callable[[Any, Callable[[], Tensor | None]], T]) -> T:
        """Restore the state, and let `act` run the step, given the batch and what runs it."""
        self._start.rewind()
        if self._kept.generators is not None:
            self._kept.generators.restore()
        given = copy.deepcopy(self._batch)
        try:
            with self._training.quiet():
                return act(given, lambda: run_step(lambda: self._training.train(given, self._batch_idx)))
        except UntouchableError as error:
            raise RuleError(str(error)) from error


def _run_three_times(kept: Kept, notes: list[str], training: TrainerTraining, batch: Any, batch_idx: int) -> Replayed:
    runs = _Runs(kept, training, batch, batch_idx)
    first, second = (runs.run(partial(_outcome_of, training)) for _ in range(2))
    found = runs.run(partial(_examined, training, kept.limit))
    return Replayed(first, second, found, tuple(dict.fromkeys(notes)))


def _follow(
    times: int, kept: Kept, notes: list[str], training: TrainerTraining, batch: Any, batch_idx: int
) -> tuple[list[StepRun], tuple[str, ...]]:
    runs = _Runs(kept, training, batch, batch_idx)
    steps = [runs.run(lambda given, step: followed(training.model, step, kept.limit)) for _ in range(times)]
    return steps, tuple(dict.fromkeys([*notes, *(note for each in steps for note in each.notes)]))


def _outcome_of(training: TrainerTraining, batch: Any, step: Callable[[], Tensor | None]) -> Outcome:
    """Run a step as it is."""
    try:
        loss = step()
    except (Exception, SystemExit) as error:
        return Outcome("", "", shortened(f"{type(error).__name__}: {error}", 500))
    model, optimizers = training.model, training.optimizers
    bad = bad_tensor_without_mode(model, optimizers, loss) or CheckedTensors(model, optimizers).bad_parameters(OriginMap())
    parameters = list(model.parameters())
    digest = _digest([loss, *(each.grad for each in parameters), *parameters])
    return Outcome("" if bad is None else bad.shown, digest, "")


def _examined(training: TrainerTraining, limit: float, batch: Any, step: Callable[[], Tensor | None]) -> Autopsy:
    """Run a step under the mode that looks at every operator."""
    examination = Examination(training.model, batch, training.optimizers, limit)
    loss = None
    try:
        with examination.following():
            loss = step()
    except SystemExit as error:
        return Autopsy(reproduced=False, notes=(f"the step raised SystemExit: {error}",))
    return examination.autopsy(examination.bad_after_step(loss) or examination.bad_after_update())


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
