"""Trial: one batch that checks may train as often as they like, each time from the state in which they found the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Final

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from typing_extensions import override

from lightning_hooks.checks.batch import Samples, first_samples, is_float, kind_of, samples_of, square_tensors
from lightning_hooks.checks.errors import OutOfRangeError, OutOfTimeError, StepError
from lightning_hooks.checks.record import Call, Record
from lightning_hooks.checks.trial_steps import TrialSteps
from lightning_hooks.engine.participants.facts import facts_of_optimizers
from lightning_hooks.engine.rerun.ranks import CommunicationError
from lightning_hooks.engine.rerun.training import Training
from lightning_hooks.nested.tensors import tensors_in
from lightning_hooks.snapshot.lending import UntouchableError

_MOST_STEPS: Final = 6
"""Further steps in which a parameter may get its first gradient: a critic may be trained five times as often as an actor."""
FEW_SAMPLES: Final = 3
"""Samples of the batch that a check trains alone; a number that is hardly the size of another dimension."""


class Trial(TrialSteps):
    """What checks read: the model, the batch, and records of steps that were run on it; arguments as of `TrialSteps`."""

    @override
    def __init__(self, training: Training, batch: Any, probes: Sequence[str] = ()) -> None:
        super().__init__(training, batch, probes)
        self._failures: dict[str, BaseException] = {}
        self._known: dict[str, Any] = {}

    @property
    def samples(self) -> Samples | str:
        """The samples of the batch, or the reason why they are not known."""
        samples: Samples | str = self._once("samples", self._find_samples)
        return samples

    def _find_samples(self) -> Samples | str:
        samples = samples_of(self.batch)
        squares = [] if isinstance(samples, str) else square_tensors(self.batch, samples.size)
        if isinstance(samples, str) or not squares:
            return samples
        # Rows of features can be left out, but not rows of an adjacency matrix, which then fits neither the nodes nor itself.
        few = min(FEW_SAMPLES, samples.size - 1)
        try:
            self.run(probes=(), batch=first_samples(self.batch, samples.size, few))
        except StepError:
            return f"{squares[0]} may relate its {samples.size} rows with each other, as an adjacency matrix does"
        return samples

    @cached_property
    def held(self) -> set[str]:
        """The names of the parameters that an optimizer holds."""
        groups = [group for each in facts_of_optimizers(self.optimizers, self.model) for group in each.groups]
        return {name for group in groups for name in group.params}

    def module(self, name: str) -> nn.Module | None:
        """The module with a name."""
        return next((each.value for each in self.names.modules if each.name == name), None)

    @property
    def batch_norms(self) -> dict[str, _BatchNorm]:
        """The batch norms by name, which mix samples in training on purpose; also those in plain lists of modules."""
        known = {each.name: each.value for each in self.names.modules}
        for name, module in self.names.hidden():
            known |= {f"{name}.{inner}".removesuffix("."): each for inner, each in module.named_modules()}
        return {name: each for name, each in known.items() if isinstance(each, _BatchNorm)}

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

    @property
    def is_by_hand(self) -> bool:
        """Whether the first step has no backward of a loss, and makes gradients or moves trainable parameters all the same."""
        moved = any(each.name in self.step.moved for each in self.trainable)
        return not self.step.losses and (moved or any(size > 0 for size in self.step.grads.values()))

    def _several(self) -> list[Record]:
        records = [self.step]
        if not self._is_missing(records):
            return records
        records = [self.run()]
        for index in range(1, _MOST_STEPS + 1):
            if not self._is_missing(records):
                break
            if not self.optimizers:
                self.fill_zeros()
            try:
                records.append(self.run(index=index, from_start=False))
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

    def _once(self, name: str, make: Callable[[], Any]) -> Any:
        """The result of `make`, cached by name. If `make` has failed, every further call raises the same error."""
        if name in self._failures:
            raise self._failures[name]
        if name not in self._known:
            try:
                self._known[name] = make()
            except (StepError, OutOfTimeError, OutOfRangeError, CommunicationError, UntouchableError) as error:
                self._failures[name] = error
                raise
        return self._known[name]


def outputs_of(call: Call, samples: int) -> list[Tensor]:
    """The float tensors of an output that have the samples in their first dimension."""
    tensors = [tensor for tensor in tensors_in(call.output) if is_float(tensor) and not kind_of(tensor)]
    return [tensor for tensor in tensors if tensor.dim() and tensor.shape[0] == samples]


def _largest(each_step: Sequence[dict[str, float]]) -> dict[str, float]:
    largest: dict[str, float] = {}
    for step in each_step:
        for name, size in step.items():
            known = largest.get(name)
            # NaN is more than 0, and no other size is more than NaN. A NaN after a size above 0 is ignored.
            largest[name] = size if known is None or size > known or (known == 0 and size != 0) else known
    return largest
