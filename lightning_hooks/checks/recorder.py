"""Recorder: what one step of a training does, read without a hook on its modules, parameters or optimizers.

Torch calls global hooks for every module and every optimizer of the process, and a function mode for every function. The
recorder registers both only while a step of a check runs, so no hook is ever on the model.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from threading import get_ident
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from lightning_hooks.checks.batch import copied, is_float
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
from lightning_hooks.checks.record import Call, Listeners, Record, layer_of, numbers_of
from lightning_hooks.engine.participants.facts import role_of
from lightning_hooks.nested.tensors import named_tensors, tensors_in
from lightning_hooks.private import attribute
from lightning_hooks.tensor_kinds import same_bits

DRAWS: Final = {
    "dropout", "alpha_dropout", "feature_alpha_dropout", "dropout1d", "dropout2d", "dropout3d", "rand", "rand_like", "randn",
    "randn_like", "randint", "randint_like", "randperm", "bernoulli", "bernoulli_", "normal", "normal_", "uniform_", "poisson",
    "multinomial", "gumbel_softmax", "rrelu", "exponential_", "random_", "native_dropout",
}  # fmt: skip
"""The functions of torch that draw random numbers."""
_DIFFERENCES: Final = {"sub", "subtract", "__sub__", "__rsub__", "rsub"}
DROPOUTS: Final = {name for name in DRAWS if "dropout" in name}


class Recorder(TorchFunctionMode):
    """A context in which a step runs; afterwards `record` says what it did.

    Args:
        names: of the modules and parameters of the model.
        optimizers: of the training.
        deadline: the time, by `time.monotonic`, at which the step is ended.
        batch: whose tensors may be read.
        listeners: what the step is asked beside its record.
    """

    def __init__(
        self,
        names: Names,
        optimizers: Sequence[Optimizer],
        deadline: float,
        batch: Any = None,
        listeners: Listeners = Listeners(),  # noqa: B008 - it is frozen
    ) -> None:
        super().__init__()
        self.record = Record()
        self._names, self._optimizers, self._deadline = names, {id(each): i for i, each in enumerate(optimizers)}, deadline
        self._hidden = list(names.hidden())
        self._leaves = {id(tensor): path for path, tensor in named_tensors(batch)}
        self._listeners = listeners
        self._unread = {id(tensor): path for path, tensor in named_tensors(batch)}
        self._batch = batch  # keeps the tensors, so that no other tensor gets their ids
        self._stack: list[tuple[nn.Module, Any]] = []  # each module that runs, and what was kept of its arguments
        self._made_by: dict[Any, str] = {}  # the module whose output has an autograd node
        self._results: dict[int, tuple[Tensor, str]] = {}  # the module that returned a tensor, by the id of the tensor
        self._before: dict[str, Tensor] = {}
        self._exits = ExitStack()
        self._thread = get_ident()

    def __enter__(self) -> Recorder:
        for handle in (
            register_module_forward_pre_hook(self._enter_module),
            register_module_forward_hook(self._leave_module, with_kwargs=True, always_call=True),
            register_optimizer_step_pre_hook(self._before_optimizer),
            register_optimizer_step_post_hook(self._after_optimizer),
        ):
            self._exits.callback(_remove, handle)
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
        if self._listeners.noise is not None:
            self._listeners.noise.note(name, args, result)
        if name in _DIFFERENCES and not self._stack:
            self._note_broadcast(args, result)
        if self._listeners.on_embedding is not None and function is F.embedding and result.requires_grad:
            self._listeners.on_embedding(args[0] if args else kwargs["input"], result)
        if function is Tensor.backward:
            self.record.losses.append(float(args[0].detach().sum()))
            self._note_grads()
            if self._listeners.on_backward is not None:
                self._listeners.on_backward()
        return result

    def _refuse_late(self) -> None:
        if time.monotonic() > self._deadline:
            raise OutOfTimeError

    def _note_read(self, given: Any) -> None:
        for tensor in tensors_in(given):
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
        if self._listeners.on_output is not None and logits.requires_grad:
            self._listeners.on_output("", logits)

    def _enter_module(self, module: nn.Module, args: Any) -> None:
        if get_ident() != self._thread:
            # Autograd calls modules of the model again in the thread of a device; other modules belong to other trainings.
            if self._names.has(module):
                self.record.called.add(self._names.of(module))
            return
        self._refuse_late()
        is_outermost = not self._stack
        before = None
        if self._listeners.with_numbers and not any(True for _ in module.children()):
            before = numbers_of(args)
        elif is_outermost:
            before = copied(args)
        self._stack.append((module, before))
        if self._unread:
            self._note_read(args)
        if self._names.has(module):
            name = self._names.of(module)
            self.record.called.add(name)
            if role_of(module) == "norm" and args and isinstance(args[0], Tensor):
                made = self._results.get(id(args[0]))
                self.record.sources[name] = made[1] if made is not None and made[0] is args[0] else ""

    def _leave_module(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if get_ident() != self._thread or not self._stack or self._stack[-1][0] is not module:
            return
        _, before = self._stack.pop()
        is_leaf = not any(True for _ in module.children())
        name = self._names.of(module)
        if self._listeners.with_numbers and is_leaf and self._names.has(module):
            layer = layer_of(name, module, before, output)
            self.record.layers += [] if layer is None else [layer]
        elif not self._stack and not self._listeners.with_numbers:
            self.record.calls.append(Call(name, module, before, copied(kwargs), output))
        for tensor in tensors_in(output):
            if is_float(tensor):
                self._results[id(tensor)] = tensor, name
                node = operation_before(tensor)
                if node is not None:
                    self._made_by.setdefault(node, name)
                is_told = self._listeners.every_output or not self._stack
                if is_told and self._listeners.on_output is not None and tensor.requires_grad and role_of(module) != "loss":
                    self._listeners.on_output(name, tensor)

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

    def _is_of_step(self, optimizer: Optimizer) -> bool:
        """Whether the step runs an optimizer, in its own thread or, within a backward, in that of a device."""
        return get_ident() == self._thread or id(optimizer) in self._optimizers

    def _before_optimizer(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not self._is_of_step(optimizer):
            return
        self._refuse_late()
        self._note_grads()
        if not self._before:
            with torch.no_grad():
                frozen = [each for each in self._names.parameters if not each.value.requires_grad]
                self._before = {each.name: each.value.detach().clone() for each in frozen}

    def _after_optimizer(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not self._is_of_step(optimizer):
            return
        before, self._before = self._before, {}
        number = self._optimizers.get(id(optimizer))
        if number is not None:
            self.record.stepped.add(number)
        for target in self._names.parameters:
            if target.name in before and not same_bits(before[target.name], target.value):
                self.record.optimizer_moved.add(target.name)


def _drops(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call of a dropout function drops anything."""
    given = dict(zip(("input", "p", "training"), args, strict=False)) | dict(kwargs)
    return bool(given.get("training", True)) and given.get("p", 0.5) != 0


def _values(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    return tensor.coalesce().values() if tensor.is_sparse else tensor


def _remove(handle: RemovableHandle) -> None:
    """Remove a hook of all modules.

    Of a hook with keyword arguments torch keeps an entry, and then takes every module for hooked.
    """
    handle.remove()
    lost = "torch.compile warns of hooks of all modules after a check"
    with_kwargs = attribute(torch.nn.modules.module, "torch.nn.modules.module._global_forward_hooks_with_kwargs", dict, lost)
    if with_kwargs is not None:
        with_kwargs.pop(handle.id, None)
