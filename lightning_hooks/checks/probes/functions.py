"""Probes of the functions of torch that a step calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Final

from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from lightning_hooks.checks.losses import (
    LossCall,
    arguments_of,
    loss_name,
    operation_before,
    refuse_labels,
    refuse_tokens,
)
from lightning_hooks.checks.probes.probe import Probe
from lightning_hooks.hooks.graph import operation_name
from lightning_hooks.nested.tensors import named_tensors, tensors_in, tensors_of

DRAWS: Final = {
    "dropout", "alpha_dropout", "feature_alpha_dropout", "dropout1d", "dropout2d", "dropout3d", "rand", "rand_like", "randn",
    "randn_like", "randint", "randint_like", "randperm", "bernoulli", "bernoulli_", "normal", "normal_", "uniform_", "poisson",
    "multinomial", "gumbel_softmax", "rrelu", "exponential_", "random_", "native_dropout",
}  # fmt: skip
"""The functions of torch that draw random numbers."""
DROPOUTS: Final = {name for name in DRAWS if "dropout" in name}
_DIFFERENCES: Final = {"sub", "subtract", "__sub__", "__rsub__", "rsub"}


class RangeGuard(Probe):
    """Ends a step whose labels or tokens have no output or no vector, before torch reads them. Part of every step."""

    @override
    def before_function(self, name: str, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        if name == "embedding" and function is F.embedding:
            given = dict(zip(("input", "weight"), args, strict=False)) | dict(kwargs)
            module = self.recorder.module
            refuse_tokens("" if module is None else self.recorder.names.of(module), given["input"], given["weight"])
        loss = loss_name(function)
        if loss:
            logits, target, options = arguments_of(loss, args, kwargs)
            if isinstance(logits, Tensor) and isinstance(target, Tensor):
                refuse_labels(loss, self.recorder.source_of(logits), logits, target, options)


class LossCalls(Probe):
    """The calls of loss functions of torch."""

    field: ClassVar[str] = "loss_calls"

    @override
    def begin(self, recorder: Any) -> None:
        super().begin(recorder)
        self._calls: list[LossCall] = []
        recorder.record.loss_calls = self._calls

    @override
    def before_function(self, name: str, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        loss = loss_name(function)
        if not loss:
            return
        logits, target, options = arguments_of(loss, args, kwargs)
        if isinstance(logits, Tensor) and isinstance(target, Tensor):
            operation, row = operation_name(operation_before(logits)), self.recorder.source_of(logits)
            self._calls.append(LossCall(loss, logits.detach(), target.detach(), options, operation, row))

    @override
    def after_function(self, name: str, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        # The losses of single samples, also of a batch of one, may be multiplied by rewards of either sign.
        if loss_name(function) and self._calls and isinstance(result, Tensor) and result.requires_grad and result.dim() == 0:
            result.register_hook(partial(self._note_slope, len(self._calls) - 1))

    def _note_slope(self, index: int, slope: Tensor) -> None:
        self._calls[index] = replace(self._calls[index], slope=float(slope))


class Draws(Probe):
    """(function, module, whether the module was in training) of each function that drew random numbers."""

    field: ClassVar[str] = "draws"

    @override
    def begin(self, recorder: Any) -> None:
        super().begin(recorder)
        self._draws: list[tuple[str, str, bool]] = []
        recorder.record.draws = self._draws

    @override
    def before_function(self, name: str, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        if name in DRAWS and not (name in DROPOUTS and not drops(args, kwargs)):
            module = self.recorder.module or self.recorder.names.model
            self._draws.append((name, self.recorder.names.of(module), module.training))


class Read(Probe):
    """The paths of the tensors of the batch that a function or a module read."""

    field: ClassVar[str] = "read"

    @override
    def begin(self, recorder: Any) -> None:
        super().begin(recorder)
        self._read: set[str] = set()
        self._unread = {id(tensor): path for path, tensor in named_tensors(recorder.batch)}
        recorder.record.read = self._read

    @override
    def before_function(self, name: str, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self._note((args, kwargs))

    @override
    def before_module(self, name: str, module: nn.Module, args: Any) -> None:
        self._note(args)

    @override
    def after_module(self, name: str, module: nn.Module, args: Any, kwargs: Mapping[str, Any], output: Any) -> None:
        self._note(kwargs)

    def _note(self, given: Any) -> None:
        for tensor in tensors_in(given) if self._unread else ():
            path = self._unread.pop(id(tensor), None)
            if path is not None:
                self._read.add(path)


class Broadcasts(Probe):
    """The differences of an output and a tensor of the batch that have a number for each pair of samples."""

    field: ClassVar[str] = "broadcasts"

    @override
    def begin(self, recorder: Any) -> None:
        super().begin(recorder)
        self._shapes: list[str] = []
        self._of_batch = {id(tensor) for tensor in tensors_of(recorder.batch)}
        recorder.record.broadcasts = self._shapes

    @override
    def after_function(self, name: str, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """Note a difference [N, N] of an output [N, 1] and a tensor [N] of the batch, in either order."""
        if name not in _DIFFERENCES or self.recorder.depth or len(args) < 2:
            return
        first, second = args[:2]
        if not all(isinstance(each, Tensor) for each in (first, second, result)):
            return
        is_of_batch = id(first) in self._of_batch or id(second) in self._of_batch
        is_larger = result.numel() > max(first.numel(), second.numel())
        if is_of_batch and is_larger and result.requires_grad and result.dim() == 2 and result.shape[0] == result.shape[1]:
            self._shapes.append(f"{tuple(first.shape)} and {tuple(second.shape)}")


def drops(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call of a dropout function drops anything."""
    given = dict(zip(("input", "p", "training"), args, strict=False)) | dict(kwargs)
    # The third argument is called `train` in `torch.dropout`, and `training` in `torch.nn.functional.dropout`.
    is_training = given.get("train", given.get("training", True))
    return bool(is_training) and given.get("p", 0.5) != 0
