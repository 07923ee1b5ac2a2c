"""Probes of losses, gradients and updates."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from lightning_hooks.checks.batch import is_float
from lightning_hooks.checks.probes.probe import Probe
from lightning_hooks.nested.tensors import named_tensors
from lightning_hooks.tensor_kinds import same_bits


class Losses(Probe):
    """The numbers of which a backward began, in order."""

    field: ClassVar[str] = "losses"

    @override
    def begin(self, recorder: Any) -> None:
        super().begin(recorder)
        self._losses: list[float] = []
        recorder.record.losses = self._losses

    @override
    def after_backward(self, loss: Tensor) -> None:
        self._losses.append(float(loss.detach().sum()))


class Grads(Probe):
    """The largest magnitude of the gradient of each parameter that had one, by name."""

    field: ClassVar[str] = "grads"

    @override
    def begin(self, recorder: Any) -> None:
        super().begin(recorder)
        self._grads: dict[str, float] = {}
        recorder.record.grads = self._grads

    @override
    def on_gradients(self) -> None:
        for target in self.recorder.names.parameters:
            grad = target.value.grad
            if grad is not None:
                size = float(_values(grad).abs().max()) if grad.numel() else 0.0
                known = self._grads.get(target.name, 0.0)
                # A gradient that is not finite stays noted, whatever comes after it.
                self._grads[target.name] = size if size != size or size > known else known

    @override
    def end(self) -> None:
        if not self._grads:
            # Without a backward pass and an optimizer's step, look once at the end: the step may have set `.grad` by hand.
            self.on_gradients()


class Hidden(Probe):
    """The names of modules in plain lists of which a parameter got a gradient."""

    field: ClassVar[str] = "hidden"

    @override
    def begin(self, recorder: Any) -> None:
        super().begin(recorder)
        self._names: list[str] = []
        self._modules = list(recorder.names.hidden())
        recorder.record.hidden = self._names

    @override
    def on_gradients(self) -> None:
        for name, module in self._modules:
            if name not in self._names and any(each.grad is not None for each in module.parameters()):
                self._names.append(name)


class Moved(Probe):
    """The largest change of each parameter that changed, by name."""

    field: ClassVar[str] = "moved"

    @override
    def begin(self, recorder: Any) -> None:
        super().begin(recorder)
        self._before = [(each, recorder.numbers_of(each.value)) for each in recorder.names.parameters]

    @override
    def end(self) -> None:
        moved: dict[str, float] = {}
        for target, before in self._before:
            now = target.value.detach()
            if now.shape == before.shape and now.numel() and not same_bits(now, before):
                moved[target.name] = _largest_change(now, before)
        self.recorder.record.moved = moved


class OptimizerMoved(Probe):
    """The names of the frozen parameters that an optimizer changed."""

    field: ClassVar[str] = "optimizer_moved"

    @override
    def begin(self, recorder: Any) -> None:
        super().begin(recorder)
        self._names: set[str] = set()
        self._before: dict[str, Tensor] = {}
        recorder.record.optimizer_moved = self._names

    @override
    def before_update(self, optimizer: Optimizer) -> None:
        if not self._before:
            with torch.no_grad():
                frozen = [each for each in self.recorder.names.parameters if not each.value.requires_grad]
                self._before = {each.name: each.value.detach().clone() for each in frozen}

    @override
    def after_update(self, optimizer: Optimizer) -> None:
        before, self._before = self._before, {}
        for target in self.recorder.names.parameters:
            if target.name in before and not same_bits(before[target.name], target.value):
                self._names.add(target.name)


class Stepped(Probe):
    """The optimizers that took a step, by number."""

    field: ClassVar[str] = "stepped"

    @override
    def begin(self, recorder: Any) -> None:
        super().begin(recorder)
        self._numbers: set[int] = set()
        recorder.record.stepped = self._numbers

    @override
    def after_update(self, optimizer: Optimizer) -> None:
        number = self.recorder.number_of(optimizer)
        if number is not None:
            self._numbers.add(number)


class InputGrads(Probe):
    """The gradients of the float tensors of the batch, by path; None for a tensor without one."""

    field: ClassVar[str] = "input_grads"

    @override
    def begin(self, recorder: Any) -> None:
        super().begin(recorder)
        floats = [(path, tensor) for path, tensor in named_tensors(recorder.batch) if is_float(tensor)]
        self._inputs = {path: tensor.requires_grad_() for path, tensor in floats}

    @override
    def end(self) -> None:
        self.recorder.record.input_grads = {path: tensor.grad for path, tensor in self._inputs.items()}


def _largest_change(now: Tensor, before: Tensor) -> float:
    """The largest change of an element. It is NaN of bytes that are no numbers, and 0 of zeros that change their sign."""
    change = now - before if now.is_complex() else now.float() - before.float()
    return float((change.coalesce().values() if change.is_sparse else change).abs().max())


def _values(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    return tensor.coalesce().values() if tensor.is_sparse else tensor
