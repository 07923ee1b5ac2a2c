"""Trial: one batch that checks may train as often as they like, each time from the state in which they found the model."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import cached_property, partial
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from lightning_hooks.checks.batch import Samples, copied, generator, is_float, kind_of, samples_of
from lightning_hooks.checks.errors import OutOfRangeError, OutOfTimeError, StepError
from lightning_hooks.checks.names import Names
from lightning_hooks.checks.probes.probe import Probe
from lightning_hooks.checks.record import Call, Record
from lightning_hooks.checks.recorder import Recorder
from lightning_hooks.engine.participants.facts import facts_of_optimizers, role_of
from lightning_hooks.engine.rerun.plain import NoLossError
from lightning_hooks.engine.rerun.ranks import CommunicationError, WithoutOtherRanks
from lightning_hooks.engine.rerun.start import StartingPoint
from lightning_hooks.engine.rerun.training import Training
from lightning_hooks.errors import shortened
from lightning_hooks.nested.tensors import tensors_in
from lightning_hooks.rules.patterns import Target
from lightning_hooks.snapshot.lending import UntouchableError
from lightning_hooks.tensor_kinds import first_line

_MOST_STEPS: Final = 6
"""Further steps in which a parameter may get its first gradient: a critic may be trained five times as often as an actor."""
_NUDGE: Final = 0.01


class Trial:
    """What checks read: the model, the batch, and records of steps that were run on it.

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
        self._failures: dict[str, BaseException] = {}
        self._known: dict[str, Any] = {}

    def restore(self) -> None:
        """Set the model, the optimizers and all generators to the state in which the trial found them.

        Copies stand in the places of iterators and other objects that cannot be restored, until `end`.
        """
        self._start.rewind()

    def end(self) -> None:
        """Restore everything, and put each object back into its place."""
        self._start.end()

    @cached_property
    def samples(self) -> Samples | str:
        """The samples of the batch, or the reason why they are not known."""
        return samples_of(self.batch)

    @cached_property
    def held(self) -> set[str]:
        """The names of the parameters that an optimizer holds."""
        groups = [group for each in facts_of_optimizers(self.optimizers, self.model) for group in each.groups]
        return {name for group in groups for name in group.params}

    @cached_property
    def trainable(self) -> list[Target[nn.Parameter]]:
        """The parameters that are not frozen."""
        return [each for each in self.names.parameters if each.value.requires_grad]

    @property
    def step(self) -> Record:
        """The record of a first step."""
        record: Record = self._once("step", self.run)
        return record

    @property
    def steps(self) -> Sequence[Record]:
        """The records of steps one after the other, until each parameter had a gradient and moved, and of seven at most."""
        records: Sequence[Record] = self._once("steps", self._several)
        return records

    @property
    def grads(self) -> dict[str, float]:
        """The largest magnitude of the gradient of each parameter that had one, over `steps`."""
        return _largest([record.grads for record in self.steps])

    @property
    def moved(self) -> dict[str, float]:
        """The largest change of each parameter in a step, over `steps`."""
        return _largest([record.moved for record in self.steps])

    def _several(self) -> list[Record]:
        records = [self.step]
        if not self._is_missing(records):
            return records
        records = [self.run()]
        for index in range(1, _MOST_STEPS + 1):
            if not self._is_missing(records):
                break
            if not self.optimizers:
                self.nudge()
            try:
                records.append(self.run(index=index, is_first=False))
            except (OutOfTimeError, StepError):
                break
        return records

    def _is_missing(self, records: Sequence[Record]) -> bool:
        grads, moved = _largest([each.grads for each in records]), _largest([each.moved for each in records])
        held = self.held
        return any(
            not grads.get(each.name, 0.0) > 0 or (each.name in held and not moved.get(each.name, 0.0) > 0)
            for each in self.trainable
        )

    def advance(self) -> None:
        """Restore everything, and train two steps: a zero layer at the end lets something through then."""
        if self.optimizers:
            for index in range(2):
                self.run(index=index, is_first=index == 0)
        else:
            self.restore()
            self.nudge()

    def nudge(self) -> None:
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
        is_first: bool = True,
    ) -> Record:
        """Run a step, and say what it did.

        Args:
            probes: what measures the step, instead of the probes that the checks registered.
            batch: instead of that of the trial; it is copied.
            before: called with the model before the step.
            index: of the batch in its epoch.
            is_first: whether to restore everything before.

        Raises:
            StepError: the step raised, or has no loss.
            OutOfTimeError: the time of the check is over.
            OutOfRangeError: a label or a token is out of range.
            UntouchableError: the step uses an object that could not be restored.
        """
        if is_first:
            self.restore()
            self._start.clear_gradients()
        self._wake()
        given = copied(self.batch if batch is None else batch)
        if before is not None:
            before(self.model)
        numbers_of = partial(self._numbers_of, is_restored=is_first and before is None)
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
        before: Callable[[nn.Module], None] | None = None,
        is_first: bool = True,
        with_graph: bool = False,
    ) -> tuple[Any, Record]:
        """Call a module again in evaluation mode.

        Args:
            call: of a step.
            probes: what measures the call.
            before: called with the model before the module.
            is_first: whether to restore everything before.
            with_graph: whether the output has a graph.

        Returns:
            The output, and what the call did.
        """
        if is_first:
            self.restore()
        if before is not None:
            before(self.model)
        self.model.eval()
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

    def _wake(self) -> None:
        """Give groups that begin with a learning rate of 0 the rate to which their scheduler warms them up."""
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                rate, later = group.get("lr"), group.get("initial_lr")
                if isinstance(rate, float | int) and rate == 0 and later is not None and float(later) > 0:
                    group["lr"] = later

    def _once(self, what: str, make: Callable[[], Any]) -> Any:
        """The result of `make`, called once for each name. If it has failed, the same error is raised at every further call."""
        if what in self._failures:
            raise self._failures[what]
        if what not in self._known:
            try:
                self._known[what] = make()
            except (StepError, OutOfTimeError, OutOfRangeError, CommunicationError, UntouchableError) as error:
                self._failures[what] = error
                raise
        return self._known[what]

    def module(self, name: str) -> nn.Module | None:
        """The module with a name."""
        return next((each.value for each in self.names.modules if each.name == name), None)

    @cached_property
    def batch_norms(self) -> list[str]:
        """The names of the batch norms, which mix samples in training on purpose."""
        return [each.name for each in self.names.modules if isinstance(each.value, _BatchNorm)]

    @cached_property
    def roles(self) -> dict[str, str]:
        """The role of each module, as of `ModuleFacts`."""
        return {each.name: role_of(each.value) for each in self.names.modules}


def outputs_of(call: Call, samples: int) -> list[Tensor]:
    """The float tensors of an output that have the samples in their first dimension."""
    tensors = [tensor for tensor in tensors_in(call.output) if is_float(tensor) and not kind_of(tensor)]
    return [tensor for tensor in tensors if tensor.dim() and tensor.shape[0] == samples]


def _largest(each_step: Sequence[dict[str, float]]) -> dict[str, float]:
    largest: dict[str, float] = {}
    for step in each_step:
        for name, size in step.items():
            # A number that is not finite is kept.
            known = largest.get(name)
            largest[name] = size if known is None or size > known else known
    return largest
