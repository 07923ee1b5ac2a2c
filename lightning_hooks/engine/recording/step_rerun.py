"""The second run of the step of a record, and the reasons why there may be none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple
from unittest.mock import patch

import torch
from torch.optim import Optimizer

from lightning_hooks.engine.recording.autopsy import Autopsy, autopsy
from lightning_hooks.engine.recording.batches import KeptBatch
from lightning_hooks.engine.recording.recorder import FoundIn, Recorder
from lightning_hooks.engine.recording.restoring import restored
from lightning_hooks.engine.rerun.training import Training
from lightning_hooks.recorder.options import RecorderOptions
from lightning_hooks.recorder.record import FlightRecord, Verdict
from lightning_hooks.tensor_kinds import is_sharded

_LARGEST_PARAMETERS: Final = (
    "the parameters that the update read are gone: it gives finite numbers if those that are not finite now are 0, and "
    "overflows in this operation if they are the largest number of their type"
)


class Rerun(NamedTuple):
    """What a second run has shown.

    Args:
        shown: the result of the last run.
        kept: the batch that gave a bad number or did not end; None if there is none, and for an update.
        finite: the number of batches that gave finite numbers; 0 if one of them did not.
    """

    shown: Autopsy
    kept: KeptBatch | None = None
    finite: int = 0


class StepRerun:
    """Runs the step of a record again, and restores the training afterwards.

    Args:
        training: runs a step again.
        recorder: has recorded the step.
        options: whether a step may run again, and for how long.
    """

    def __init__(self, training: Training, recorder: Recorder, options: RecorderOptions) -> None:
        self._training, self._recorder, self._options = training, recorder, options

    def refusal(self, record: FlightRecord, found_in: FoundIn, batches: Sequence[KeptBatch]) -> str:
        """Why the step cannot be run again, as a clause; empty if it can.

        Args:
            record: of the step.
            found_in: the tensors in which the first bad number was found.
            batches: those that may have made it.
        """
        training, marks = self._training, self._recorder.marks
        if not self._options.autopsy:
            return "only a FlightRecorder with autopsy=True runs steps again"
        if not self._recorder.is_immediate:
            return "the numbers came from a device one step late, and the weights have changed since"
        if record.verdict is Verdict.ALL_REDUCE:
            return "each gradient that this rank computed is finite"
        if found_in == "parameters":
            if record.verdict is Verdict.WEIGHTS:
                return "its parameters were not finite before its update"
            if record.verdict is Verdict.GRADIENTS:
                return "its gradients were not finite after the update"
            is_shared = any(map(is_sharded, training.model.parameters()))
            return "an update of sharded parameters may wait for other ranks" if is_shared else ""
        refused = training.refusal()
        if refused:
            return refused
        if marks.updates and not training.is_manual:
            return "an optimizer has already changed parameters in this batch"
        if not batches:
            is_earlier = record.place is not None and record.place.micro_batch != marks.micro_batch
            return "its batch is not kept" if is_earlier else "the batch is not known in a loop of your own"
        changed = [name for kept in batches for name in kept.changed()]
        return f"{', '.join(changed)} was changed in place since the step began" if changed else ""

    def run(self, found_in: FoundIn, batches: Sequence[KeptBatch], optimizer: Optimizer | None) -> Rerun | None:
        """Run the step, or its update alone if the parameters are bad; None if the batch or the optimizer is not known.

        Several batches run one after another, each from no gradients, until one gives a bad number.

        Args:
            found_in: as of `refusal`.
            batches: as of `refusal`.
            optimizer: whose update is under way.

        Raises:
            UntouchableError: the step uses an object that could not be restored.
        """
        if found_in == "parameters":
            return None if optimizer is None else Rerun(self._run_update(optimizer))
        shown, left = None, self._options.limit
        notes: list[str] = []
        for kept in batches:
            shown = self._run_step(kept, left)
            if shown.reproduced or not shown.has_ended:
                return Rerun(shown, kept)
            notes += shown.notes
            left -= shown.seconds
        return None if shown is None else Rerun(replace(shown, notes=tuple(dict.fromkeys(notes))), None, len(batches))

    def _run_step(self, kept: KeptBatch, limit: float) -> Autopsy:
        training = self._training
        step = partial(training.differentiate, kept.batch, kept.batch_idx, self._recorder.marks.updates)
        with training.quiet(), restored(training.model, scaler=training.scaler):
            if kept.generators is not None:
                kept.generators.restore()
            return autopsy(training.model, step, batch=kept.batch, optimizers=training.optimizers, limit=limit)

    def _run_update(self, optimizer: Optimizer) -> Autopsy:
        """Run the update again with the learning rate and the state that it left.

        The update has overwritten the parameters that it read. A first run has 0 in place of those that are not finite now: if
        they become bad again, the rate or the state is the reason. If not, the parameters themselves were too large: a second
        run has the largest finite number in their place.
        """
        first = self._run_update_from(optimizer, 0.0)
        if first.reproduced or not first.has_ended:
            return first
        second = self._run_update_from(optimizer, 1.0)
        if second.operation is None:
            return second
        # The operands of the second run are not those of the training: leave them out of the record.
        operation = replace(second.operation, inputs=())
        return replace(second, operation=operation, inputs=(), notes=(*second.notes, _LARGEST_PARAMETERS))

    def _run_update_from(self, optimizer: Optimizer, share: float) -> Autopsy:
        """Run an update with the parameters that are not finite at a share of the largest number of their type."""
        training = self._training
        gradients = [(each, each.grad) for group in optimizer.param_groups for each in group["params"]]
        with training.quiet(), restored(training.model, [optimizer], updates=True):
            with torch.no_grad():
                for parameter, gradient in gradients:
                    largest = share * torch.finfo(parameter.dtype).max
                    parameter.nan_to_num_(largest, largest, -largest)
                    parameter.grad = gradient
            kind = type(optimizer)
            with _steps_without_hooks(kind):
                # Call the step of the class: a scheduler puts a function of its own in the place of the method of the object.
                update = partial(kind.step, optimizer)
                return autopsy(training.model, _no_step, update=update, optimizers=[optimizer], limit=self._options.limit)


@contextmanager
def _steps_without_hooks(kind: type[Optimizer]) -> Iterator[None]:
    """In the block, the steps of an optimizer's class and of its bases call no hooks of optimizers.

    Torch wraps the step of each class that had an object, so a step that calls that of its base class calls the hooks twice.
    """
    with ExitStack() as stack:
        for base in kind.__mro__:
            step = vars(base).get("step")
            if getattr(step, "hooked", False):
                stack.enter_context(patch.object(base, "step", _unwrapped(step)))
        yield


def _unwrapped(step: Any) -> Any:
    # Dynamo wraps the wrapper of torch again, so there may be two.
    while getattr(step, "hooked", False) and hasattr(step, "__wrapped__"):
        step = step.__wrapped__
    return step


def _no_step() -> None:
    """Stands for the forward and backward of a step of which only the update runs again."""
