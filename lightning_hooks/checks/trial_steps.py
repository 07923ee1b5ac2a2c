"""The steps and the calls that a trial runs on its batch, from the state in which it found the model."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import cached_property, partial
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from lightning_hooks.checks.batch import copied, generator
from lightning_hooks.checks.errors import StepError
from lightning_hooks.checks.names import Names
from lightning_hooks.checks.probes.probe import Probe
from lightning_hooks.checks.record import Call, Record
from lightning_hooks.checks.recorder import Recorder
from lightning_hooks.engine.rerun.plain import NoLossError
from lightning_hooks.engine.rerun.ranks import WithoutOtherRanks
from lightning_hooks.engine.rerun.start import StartingPoint
from lightning_hooks.engine.rerun.training import Training
from lightning_hooks.errors import shortened
from lightning_hooks.rules.patterns import Target
from lightning_hooks.tensor_kinds import first_line

_NUDGE: Final = 0.01  # the standard deviation of the numbers that replace zeros


class TrialSteps:
    """Runs steps of a training, and calls its modules again.

    Args:
        training: how the batch is trained.
        batch: any nested containers of tensors.
        probes: the names of the probes that checks registered: what the record of a step has.

    Attributes:
        model: the root module.
        batch: the batch, which nobody may change.
        names: of the modules and parameters.
        optimizers: of the training.
        deadline: the time, by `time.monotonic`, at which a step raises `OutOfTimeError`.
        unrestorable: the names of objects that a step may use, and that could not be restored after it.
    """

    def __init__(self, training: Training, batch: Any, probes: Sequence[str] = ()) -> None:
        self.training, self._probes = training, probes
        self.model, self.batch, self.optimizers = training.model, batch, training.optimizers
        self.names = Names(training.model)
        self.deadline = math.inf
        self._start = StartingPoint(training)
        self.unrestorable = self._start.unrestorable

    @cached_property
    def trainable(self) -> list[Target[nn.Parameter]]:
        """The parameters that are not frozen."""
        return [each for each in self.names.parameters if each.value.requires_grad]

    def restore(self) -> None:
        """Set the model, the optimizers and all generators to the state in which the trial found them.

        Copies stand in the places of iterators and other objects that cannot be restored, until `end`.
        """
        self._start.rewind()

    def end(self) -> None:
        """Restore everything, and put each object back into its place."""
        self._start.end()

    def advance(self) -> None:
        """Restore everything, and train two steps, after which a layer that began with zeros passes a signal on."""
        if self.optimizers:
            for index in range(2):
                self.run(probes=(), index=index, from_start=index == 0)
        else:
            self.restore()
            self.fill_zeros()

    def fill_zeros(self) -> None:
        """Replace parameters that are all zero by small random numbers: a zero layer at the end lets no gradient through."""
        chance = generator()
        for target in self.trainable:
            values = target.value.data
            if values.layout == torch.strided and values.numel() and not values.any():
                values.add_(torch.randn(values.shape, generator=chance).to(values) * _NUDGE)

    def run(
        self,
        *,
        probes: Iterable[str | Probe] | None = None,
        batch: Any = None,
        before: Callable[[nn.Module], None] | None = None,
        index: int = 0,
        from_start: bool = True,
    ) -> Record:
        """Run a step, and say what it did.

        Args:
            probes: what measures the step, instead of the probes that the checks registered.
            batch: instead of that of the trial; it is copied.
            before: called with the model before the step.
            index: of the batch in its epoch.
            from_start: whether to restore everything before.

        Raises:
            StepError: the step raised, or has no loss.
            OutOfTimeError: the time of the check is over.
            OutOfRangeError: a label or a token is out of range.
            UntouchableError: the step uses an object that could not be restored.
        """
        if from_start:
            self.restore()
            self._start.clear_gradients()
        self._skip_warm_up()
        given = copied(self.batch if batch is None else batch)
        if before is not None:
            before(self.model)
        numbers_of = partial(self._numbers_of, is_restored=from_start and before is None)
        used = self._probes if probes is None else probes
        recorder = Recorder(self.names, self.optimizers, self.deadline, used, given, numbers_of)
        with self._surroundings(), recorder:
            try:
                self.training.train(given, index)
            except NoLossError as error:
                raise StepError(str(error)) from None
            except Exception as error:
                raise StepError(f"the step raises {type(error).__name__}: {shortened(first_line(error), 300)}") from error
        return recorder.record

    def evaluate(
        self,
        call: Call,
        *,
        probes: Iterable[str | Probe] = (),
        from_start: bool = True,
        with_graph: bool = False,
        by_batch: bool = False,
    ) -> tuple[Any, Record]:
        """Call a module again in evaluation mode.

        Args:
            call: of a step.
            probes: what measures the call.
            from_start: whether to restore everything before.
            with_graph: whether the output has a graph.
            by_batch: whether norms that are in training mode stay there and normalise by the batch, not by running statistics.

        Returns:
            The output, and what the call did.

        Raises:
            StepError: the module raised.
        """
        if from_start:
            self.restore()
        norms = [each for each in self.model.modules() if by_batch and isinstance(each, _NormBase) and each.training]
        self.model.eval()
        for norm in norms:
            norm.train()
        args, kwargs = copied(call.args), copied(dict(call.kwargs))
        recorder = Recorder(self.names, (), self.deadline, probes)
        with self._surroundings(), recorder, torch.set_grad_enabled(with_graph), self.training.forward_context():
            try:
                return call.module(*args, **kwargs), recorder.record
            except Exception as error:
                text = f"{call.name} raises in evaluation mode: {type(error).__name__}: {shortened(first_line(error), 300)}"
                raise StepError(text) from error

    def _numbers_of(self, parameter: nn.Parameter, is_restored: bool) -> Tensor:
        kept = self._start.numbers_of(parameter) if is_restored else None
        return parameter.detach().clone() if kept is None else kept

    def _surroundings(self) -> ExitStack:
        stack = ExitStack()
        # Run compiled modules eagerly: compiling may take minutes, and compiled code calls no hook of a recorder.
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(self.training.quiet())
        if self.training.world_size > 1:
            stack.enter_context(WithoutOtherRanks())
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        return stack

    def _skip_warm_up(self) -> None:
        """Set learning rates of 0 to the rates to which a scheduler raises them, since nothing moves with 0."""
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                rate, later = group.get("lr"), group.get("initial_lr")
                if isinstance(rate, float | int) and rate == 0 and later is not None and float(later) > 0:
                    group["lr"] = later
