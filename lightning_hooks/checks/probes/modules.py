"""Probes of the calls of modules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import override

from lightning_hooks.checks.batch import copied, is_float, kind_of
from lightning_hooks.checks.probes.probe import Probe
from lightning_hooks.checks.record import Call, Layer
from lightning_hooks.engine.participants.facts import role_of
from lightning_hooks.nested.tensors import tensors_in
from lightning_hooks.rules.layers import has_children


class Calls(Probe):
    """The calls of modules that no other module called, with copies of their arguments."""

    field: ClassVar[str] = "calls"

    @override
    def begin(self, recorder: Any) -> None:
        super().begin(recorder)
        self._calls: list[Call] = []
        self._args: Any = None
        recorder.record.calls = self._calls

    @override
    def before_module(self, name: str, module: nn.Module, args: Any) -> None:
        if self.recorder.depth == 1:
            self._args = copied(args)

    @override
    def after_module(self, name: str, module: nn.Module, args: Any, kwargs: Mapping[str, Any], output: Any) -> None:
        if self.recorder.depth == 0:
            self._calls.append(Call(name, module, self._args, copied(kwargs), output))


class Called(Probe):
    """The names of the modules that were called."""

    field: ClassVar[str] = "called"

    @override
    def begin(self, recorder: Any) -> None:
        super().begin(recorder)
        # Autograd calls modules again in the thread of a device, of which a recorder tells no probe anything else.
        recorder.record.called = recorder.called


class Traced(Probe):
    """The names of the modules of which an output had a graph."""

    field: ClassVar[str] = "traced"

    @override
    def begin(self, recorder: Any) -> None:
        super().begin(recorder)
        self._traced: set[str] = set()
        recorder.record.traced = self._traced

    @override
    def after_module(self, name: str, module: nn.Module, args: Any, kwargs: Mapping[str, Any], output: Any) -> None:
        if name not in self._traced and any(tensor.requires_grad for tensor in tensors_in(output)):
            self._traced.add(name)


class Layers(Probe):
    """The numbers of inputs and outputs of modules without children. Measuring them waits for the device."""

    field: ClassVar[str] = "layers"

    @override
    def begin(self, recorder: Any) -> None:
        super().begin(recorder)
        self._layers: list[Layer] = []
        self._inputs: list[_Numbers | None] = []
        recorder.record.layers = self._layers

    @override
    def before_module(self, name: str, module: nn.Module, args: Any) -> None:
        if not has_children(module):
            self._inputs.append(_numbers_of(args))

    @override
    def after_module(self, name: str, module: nn.Module, args: Any, kwargs: Mapping[str, Any], output: Any) -> None:
        if has_children(module):
            return
        inputs = self._inputs.pop()
        if self.recorder.names.has(module):
            layer = _layer_of(name, module, inputs, output)
            self._layers += [] if layer is None else [layer]


class Sources(Probe):
    """For each norm, the module whose output is its input."""

    field: ClassVar[str] = "sources"

    @override
    def begin(self, recorder: Any) -> None:
        super().begin(recorder)
        self._sources: dict[str, str] = {}
        # By the id of a tensor the tensor itself: while it is held, no other tensor gets its id.
        self._results: dict[int, tuple[Tensor, str]] = {}
        recorder.record.sources = self._sources

    @override
    def before_module(self, name: str, module: nn.Module, args: Any) -> None:
        if role_of(module) == "norm" and args and isinstance(args[0], Tensor) and self.recorder.names.has(module):
            made = self._results.get(id(args[0]))
            self._sources[name] = made[1] if made is not None and made[0] is args[0] else ""

    @override
    def after_module(self, name: str, module: nn.Module, args: Any, kwargs: Mapping[str, Any], output: Any) -> None:
        for tensor in tensors_in(output):
            if is_float(tensor):
                self._results[id(tensor)] = tensor, name


_Numbers = tuple[float, float, float, bool]
"""Mean, standard deviation and root mean square of a tensor, and whether it and its neighbours are finite."""


def _numbers_of(values: Any) -> _Numbers | None:
    """The numbers of the first float tensor of nested containers; None if there is none."""
    floats = _floats(values)
    if not floats:
        return None
    first = floats[0].float()
    std = float(first.std(correction=0))
    return float(first.mean()), std, float(first.square().mean().sqrt()), _are_finite(floats)


def _layer_of(name: str, module: nn.Module, inputs: _Numbers | None, output: Any) -> Layer | None:
    """The numbers of a call; None if its output holds no float tensor."""
    floats = _floats(output)
    if not floats:
        return None
    mean, std, rms, was_finite = inputs if inputs is not None else (float("nan"),) * 3 + (True,)
    first = floats[0].float()
    size, largest = float(first.square().mean().sqrt()), float(first.abs().max())
    return Layer(name, role_of(module), mean, std, rms, size, largest, _are_finite(floats), was_finite)


def _floats(values: Any) -> list[Tensor]:
    floats = [tensor.detach() for tensor in tensors_in(values) if tensor.is_floating_point() and not kind_of(tensor)]
    return [tensor for tensor in floats if tensor.numel()]


def _are_finite(tensors: list[Tensor]) -> bool:
    return all(bool(torch.isfinite(each).all()) for each in tensors)
