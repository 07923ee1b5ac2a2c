"""Recorder: what one step of a training does, read without a hook on its modules, parameters or optimizers.

Torch calls global hooks for every module and every optimizer of the process, and a function mode for every function. They are
there only while a step of a check runs, so nothing has to be taken off the model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode

from lightning_hooks.checks.batch import copied, is_float, leaves
from lightning_hooks.checks.errors import OutOfTimeError
from lightning_hooks.checks.losses import (
    LossCall,
    arguments_of,
    loss_name,
    operation_before,
    operation_name,
    refuse_labels,
    refuse_tokens,
)
from lightning_hooks.checks.names import Names
from lightning_hooks.checks.noise import Noise
from lightning_hooks.engine.participants.facts import role_of

DRAWS: Final = {
    "dropout", "alpha_dropout", "feature_alpha_dropout", "dropout1d", "dropout2d", "dropout3d", "rand", "rand_like", "randn",
    "randn_like", "randint", "randint_like", "randperm", "bernoulli", "bernoulli_", "normal", "normal_", "uniform_", "poisson",
    "multinomial", "gumbel_softmax", "rrelu", "exponential_", "random_", "native_dropout",
}  # fmt: skip
"""The functions of torch that draw random numbers."""
_DIFFERENCES: Final = {"sub", "subtract", "__sub__", "__rsub__", "rsub"}
DROPOUTS: Final = {name for name in DRAWS if "dropout" in name}


@dataclass(frozen=True)
class Call:
    """A call of a module that no other module called.

    Args:
        name: of the module; `the model` for the root.
        module: the module.
        args: copies of its arguments.
        kwargs: copies of its arguments by name.
        output: what it returned.
    """

    name: str
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    output: Any


@dataclass(frozen=True)
class Layer:
    """The numbers of one call of a module without children.

    Args:
        name: of the module.
        role: of its class, as of `ModuleFacts`.
        input_mean: of its first float input; NaN without one.
        input_std: likewise.
        output_rms: the root mean square of its output.
        output_max: the largest magnitude.
        is_finite: whether no element of the output is NaN or infinite.
        input_is_finite: whether no element of its inputs is.
    """

    name: str
    role: str
    input_mean: float
    input_std: float
    input_rms: float
    output_rms: float
    output_max: float
    is_finite: bool
    input_is_finite: bool


@dataclass
class Record:
    """What a step did.

    Args:
        losses: the numbers of which a backward began, in order.
        loss_calls: the calls of loss functions of torch.
        calls: the calls of modules that no other module called.
        layers: the numbers of modules without children, in the order of execution; only if asked for.
        called: the names of the modules that were called.
        grads: the largest magnitude of the gradient of each parameter that had one, by name.
        moved: the largest change of each parameter, by name.
        optimizer_moved: the names of the frozen parameters that an optimizer changed.
        stepped: the optimizers that took a step, by number.
        draws: (function, module, whether the module was in training) of each function that drew random numbers.
        read: the paths of the tensors of the batch that a function or a module read.
        sources: for each norm, the module whose output is its input.
        input_grads: the gradients of the float tensors of the batch, by path.
        hidden: the names of modules in plain lists of which a parameter got a gradient.
        broadcasts: the differences of an output and a tensor of the batch that have a number for each pair of samples.
    """

    losses: list[float] = field(default_factory=list)
    loss_calls: list[LossCall] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    layers: list[Layer] = field(default_factory=list)
    called: set[str] = field(default_factory=set)
    grads: dict[str, float] = field(default_factory=dict)
    moved: dict[str, float] = field(default_factory=dict)
    optimizer_moved: set[str] = field(default_factory=set)
    stepped: set[int] = field(default_factory=set)
    draws: list[tuple[str, str, bool]] = field(default_factory=list)
    read: set[str] = field(default_factory=set)
    sources: dict[str, str] = field(default_factory=dict)
    input_grads: dict[str, Tensor | None] = field(default_factory=dict)
    hidden: list[str] = field(default_factory=list)
    broadcasts: list[str] = field(default_factory=list)


class Recorder(TorchFunctionMode):
    """A context in which a step runs; afterwards `record` says what it did.

    Args:
        names: of the modules and parameters of the model.
        optimizers: of the training.
        deadline: the time, by `time.monotonic`, at which the step is ended.
        batch: whose tensors may be read.
        with_numbers: whether to measure the inputs and outputs of modules, which waits for the device.
        on_output: called with the name and each tensor with a graph that an outermost module returns or a loss function reads.
        on_embedding: called with the indices and the vectors of each embedding.
        every_output: whether `on_output` is called for modules within modules too.
        on_backward: called after each backward.
        noise: told of every function.
    """

    def __init__(
        self,
        names: Names,
        optimizers: Sequence[Optimizer],
        deadline: float,
        batch: Any = None,
        *,
        with_numbers: bool = False,
        on_output: Callable[[str, Tensor], None] | None = None,
        on_embedding: Callable[[Tensor, Tensor], None] | None = None,
        every_output: bool = False,
        on_backward: Callable[[], None] | None = None,
        noise: Noise | None = None,
    ) -> None:
        super().__init__()
        self.record = Record()
        self._names, self._optimizers, self._deadline = names, {id(each): i for i, each in enumerate(optimizers)}, deadline
        self._hidden = list(names.hidden())
        self._leaves = {id(tensor): path for path, tensor in leaves(batch)}
        self._with_numbers, self._on_output = with_numbers, on_output
        self._noise = noise
        self._on_embedding, self._every_output, self._on_backward = on_embedding, every_output, on_backward
        self._unread = {id(tensor): path for path, tensor in leaves(batch)}
        self._batch = batch  # keeps the tensors, so that no other tensor gets their ids
        self._stack: list[tuple[nn.Module, Any, Any]] = []
        self._made_by: dict[Any, str] = {}  # the module whose output has an autograd node
        self._results: dict[int, tuple[Tensor, str]] = {}  # the module that returned a tensor, by the id of the tensor
        self._before: dict[str, Tensor] = {}
        self._exits = ExitStack()

    def __enter__(self) -> Recorder:
        for handle in (
            register_module_forward_pre_hook(self._enter_module),
            register_module_forward_hook(self._leave_module, with_kwargs=True, always_call=True),
            register_optimizer_step_pre_hook(self._before_optimizer),
            register_optimizer_step_post_hook(self._after_optimizer),
        ):
            self._exits.callback(handle.remove)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        try:
            super().__exit__(*error)  # type: ignore[no-untyped-call]
        finally:
            self._exits.close()
            self._results.clear()

    def __torch_function__(self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self._refuse_late()
        name = getattr(function, "__name__", "")
        if self._unread:
            self._note_read((args, kwargs))
        if name in DRAWS:
            module = self._stack[-1][0] if self._stack else self._names.model
            if not (name in DROPOUTS and not _drops(args, kwargs)):
                self.record.draws.append((name, self._names.of(module), module.training))
        elif name == "embedding" and function is F.embedding:
            given = dict(zip(("input", "weight"), args, strict=False)) | kwargs
            refuse_tokens(self._names.of(self._stack[-1][0]) if self._stack else "", given["input"], given["weight"])
        loss = loss_name(function)
        if loss:
            self._note_loss(loss, args, kwargs)
        result = function(*args, **kwargs)
        if self._noise is not None:
            self._noise.note(name, args, result)
        if name in _DIFFERENCES and not self._stack:
            self._note_broadcast(args, result)
        if self._on_embedding is not None and function is F.embedding and result.requires_grad:
            self._on_embedding(args[0] if args else kwargs["input"], result)
        if function is Tensor.backward:
            self.record.losses.append(float(args[0].detach().sum()))
            self._note_grads()
            if self._on_backward is not None:
                self._on_backward()
        return result

    def _refuse_late(self) -> None:
        if time.monotonic() > self._deadline:
            raise OutOfTimeError

    def _note_read(self, given: Any) -> None:
        for _, tensor in leaves(given):
            path = self._unread.pop(id(tensor), None)
            if path is not None:
                self.record.read.add(path)

    def _note_broadcast(self, args: Sequence[Any], result: Any) -> None:
        """Note a difference [N, N] of an output [N, 1] and a tensor [N] of the batch, in either order."""
        if len(args) < 2 or not all(isinstance(each, Tensor) for each in (*args[:2], result)):
            return
        first, second = args[:2]
        path = self._leaves.get(id(second)) or self._leaves.get(id(first))
        is_larger = result.numel() > max(first.numel(), second.numel())
        if path is not None and is_larger and result.requires_grad and result.dim() == 2 and result.shape[0] == result.shape[1]:
            self.record.broadcasts.append(f"{tuple(first.shape)} and {tuple(second.shape)}")

    def _note_loss(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        logits, target, options = arguments_of(name, args, kwargs)
        if not isinstance(logits, Tensor) or not isinstance(target, Tensor):
            return
        node = operation_before(logits)
        row = self._made_by.get(node, "") if node is not None else ""
        refuse_labels(name, row, logits, target, options)
        call = LossCall(name, logits.detach(), target.detach(), options, operation_name(node), row)
        self.record.loss_calls.append(call)
        if self._on_output is not None and logits.requires_grad:
            self._on_output("", logits)

    def _enter_module(self, module: nn.Module, args: Any) -> None:
        self._refuse_late()
        is_outermost = not self._stack
        before = None
        if self._with_numbers and not any(True for _ in module.children()):
            before = _numbers(args)
        elif is_outermost:
            before = copied(args)
        self._stack.append((module, before, None))
        if self._unread:
            self._note_read(args)
        if self._names.has(module):
            name = self._names.of(module)
            self.record.called.add(name)
            if role_of(module) == "norm" and args and isinstance(args[0], Tensor):
                made = self._results.get(id(args[0]))
                self.record.sources[name] = made[1] if made is not None and made[0] is args[0] else ""

    def _leave_module(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if not self._stack or self._stack[-1][0] is not module:
            return
        _, before, _ = self._stack.pop()
        is_leaf = not any(True for _ in module.children())
        name = self._names.of(module)
        if self._with_numbers and is_leaf and self._names.has(module):
            self._note_layer(name, module, before, output)
        elif not self._stack and not self._with_numbers:
            self.record.calls.append(Call(name, module, before, copied(kwargs), output))
        for _, tensor in leaves(output):
            if is_float(tensor):
                self._results[id(tensor)] = tensor, name
                node = operation_before(tensor)
                if node is not None:
                    self._made_by.setdefault(node, name)
                is_told = self._every_output or not self._stack
                if is_told and self._on_output is not None and tensor.requires_grad and role_of(module) != "loss":
                    self._on_output(name, tensor)

    def _note_layer(self, name: str, module: nn.Module, before: Any, output: Any) -> None:
        mean, std, rms, was_finite = before if before is not None else (float("nan"),) * 3 + (True,)
        floats = [tensor.detach() for _, tensor in leaves(output) if tensor.is_floating_point() and tensor.numel()]
        if not floats:
            return
        values = floats[0].float()
        finite = all(bool(torch.isfinite(each).all()) for each in floats)
        out_rms, largest = float(values.square().mean().sqrt()), float(values.abs().max())
        self.record.layers.append(Layer(name, role_of(module), mean, std, rms, out_rms, largest, finite, was_finite))

    def _note_grads(self) -> None:
        for target in self._names.parameters:
            grad = target.value.grad
            if grad is not None:
                size = float(_values(grad).abs().max()) if grad.numel() else 0.0
                known = self.record.grads.get(target.name, 0.0)
                # A gradient that is not finite stays noted, whatever comes after it.
                self.record.grads[target.name] = size if size != size or size > known else known

        for name, module in self._hidden:
            if name not in self.record.hidden and any(each.grad is not None for each in module.parameters()):
                self.record.hidden.append(name)

    def _before_optimizer(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._refuse_late()
        self._note_grads()
        if not self._before:
            with torch.no_grad():
                frozen = [each for each in self._names.parameters if not each.value.requires_grad]
                self._before = {each.name: each.value.detach().clone() for each in frozen}

    def _after_optimizer(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        before, self._before = self._before, {}
        number = self._optimizers.get(id(optimizer))
        if number is not None:
            self.record.stepped.add(number)
        for target in self._names.parameters:
            if target.name in before and not torch.equal(before[target.name], target.value.detach()):
                self.record.optimizer_moved.add(target.name)


def _drops(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call of a dropout function drops anything."""
    given = dict(zip(("input", "p", "training"), args, strict=False)) | dict(kwargs)
    return bool(given.get("training", True)) and given.get("p", 0.5) != 0


def _values(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    return tensor.coalesce().values() if tensor.is_sparse else tensor


def _numbers(args: Any) -> tuple[float, float, float, bool] | None:
    """Mean, standard deviation, root mean square and finiteness of the first float tensor."""
    floats = [tensor.detach() for _, tensor in leaves(args) if tensor.is_floating_point() and tensor.numel()]
    if not floats:
        return None
    values = floats[0].float()
    finite = all(bool(torch.isfinite(each).all()) for each in floats)
    std = float(values.std(correction=0))
    return float(values.mean()), std, float(values.square().mean().sqrt()), finite
