"""Recorder: tells probes what one step of a training does, without a hook on its modules, parameters or optimizers.

Torch calls global hooks for every module and every optimizer of the process, and a function mode for every function. The
recorder registers both only while a step of a check runs, so no hook is ever on the model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from lightning_hooks.checks.batch import is_float
from lightning_hooks.checks.errors import OutOfTimeError
from lightning_hooks.checks.losses import operation_before
from lightning_hooks.checks.names import Names
from lightning_hooks.checks.probes import PROBES
from lightning_hooks.checks.probes.functions import RangeGuard
from lightning_hooks.checks.probes.probe import EVENTS, Probe
from lightning_hooks.checks.record import Record
from lightning_hooks.nested.tensors import tensors_in
from lightning_hooks.private import attribute


class Recorder(TorchFunctionMode):
    """A context in which a step runs; afterwards `record` says what it did.

    Args:
        names: of the modules and parameters of the model.
        optimizers: of the training.
        deadline: the time, by `time.monotonic`, at which the step is ended.
        probes: what measures the step: names of `PROBES`, or probes.
        batch: that the step gets.
        numbers_of: returns a copy of the numbers of a parameter before the step.

    Attributes:
        record: what the probes measured.
        called: the names of the modules that were called, in any thread.
    """

    def __init__(
        self,
        names: Names,
        optimizers: Sequence[Optimizer],
        deadline: float,
        probes: Iterable[str | Probe] = (),
        batch: Any = None,
        numbers_of: Callable[[nn.Parameter], Tensor] = lambda parameter: parameter.detach().clone(),
    ) -> None:
        super().__init__()
        self.record = Record()
        self.called: set[str] = set()
        # Holding the batch keeps its tensors alive, so that no other tensor gets their ids.
        self.names, self.batch, self.numbers_of = names, batch, numbers_of
        self._optimizers = {id(each): i for i, each in enumerate(optimizers)}
        self._deadline = deadline
        made = [PROBES[each]() if isinstance(each, str) else each for each in dict.fromkeys(probes)]
        self._probes: list[Probe] = [RangeGuard(), *made]
        self._listening = self._by_event()
        self._running: list[nn.Module] = []
        self._made_by: dict[Any, str] = {}  # the module whose output has an autograd node
        self._exits = ExitStack()
        self._thread = get_ident()

    def __enter__(self) -> Recorder:
        for probe in [*self._probes]:
            self._tell_one(probe, "begin", self)
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
        if error[0] is None:
            self._tell("end")

    @property
    def module(self) -> nn.Module | None:
        """The module that runs; None outside all modules."""
        return self._running[-1] if self._running else None

    @property
    def depth(self) -> int:
        """The number of modules that run; an outermost module counts when it begins, and no longer when it has ended."""
        return len(self._running)

    def source_of(self, tensor: Tensor) -> str:
        """The name of the module whose output a tensor is, once views and copies are passed; empty if there is none."""
        node = operation_before(tensor)
        return self._made_by.get(node, "") if node is not None else ""

    def number_of(self, optimizer: Optimizer) -> int | None:
        """The number of an optimizer of the training; None of another one."""
        return self._optimizers.get(id(optimizer))

    def __torch_function__(self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self._refuse_late()
        name = getattr(function, "__name__", "")
        self._tell("before_function", name, function, args, kwargs)
        result = function(*args, **kwargs)
        self._tell("after_function", name, function, args, kwargs, result)
        if function is Tensor.backward:
            self._tell("after_backward", args[0])
            self._tell("on_gradients")
        return result

    def _by_event(self) -> dict[str, list[Probe]]:
        return {event: [each for each in self._probes if _overrides(each, event)] for event in EVENTS}

    def _tell(self, event: str, *args: Any) -> None:
        for probe in self._listening[event]:
            self._tell_one(probe, event, *args)

    def _tell_one(self, probe: Probe, event: str, *args: Any) -> None:
        try:
            getattr(probe, event)(*args)
        except Exception as error:
            if not probe.field:
                raise
            # The step and the other probes continue: only a check that reads the field of this probe gets the error.
            self.record.fail(probe.field, error)
            self._listening = {
                event: [each for each in probes if each is not probe] for event, probes in self._listening.items()
            }

    def _refuse_late(self) -> None:
        if time.monotonic() > self._deadline:
            raise OutOfTimeError

    def _enter_module(self, module: nn.Module, args: Any) -> None:
        is_of_step = get_ident() == self._thread
        if is_of_step:
            self._refuse_late()
        # Note modules of the model from every thread: in a backward, autograd calls checkpointed modules in a thread of the
        # device. Other modules in other threads may belong to another training.
        if self.names.has(module):
            self.called.add(self.names.of(module))
        if is_of_step:
            self._running.append(module)
            self._tell("before_module", self.names.of(module), module, args)

    def _leave_module(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if get_ident() != self._thread or self.module is not module:
            return
        self._running.pop()
        name = self.names.of(module)
        for tensor in tensors_in(output):
            node = operation_before(tensor) if is_float(tensor) else None
            if node is not None:
                self._made_by.setdefault(node, name)
        self._tell("after_module", name, module, args, kwargs, output)

    def _is_of_step(self, optimizer: Optimizer) -> bool:
        """Whether the step runs an optimizer, in its own thread or, within a backward, in that of a device."""
        return get_ident() == self._thread or id(optimizer) in self._optimizers

    def _before_optimizer(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._is_of_step(optimizer):
            self._refuse_late()
            self._tell("before_update", optimizer)
            self._tell("on_gradients")

    def _after_optimizer(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._is_of_step(optimizer):
            self._tell("after_update", optimizer)


def _overrides(probe: Probe, event: str) -> bool:
    return getattr(type(probe), event) is not getattr(Probe, event)


def _remove(handle: RemovableHandle) -> None:
    """Remove a hook of all modules.

    Of a hook with keyword arguments torch keeps an entry, and then takes every module for hooked.
    """
    handle.remove()
    lost = "torch.compile warns of hooks of all modules after a check"
    with_kwargs = attribute(torch.nn.modules.module, "torch.nn.modules.module._global_forward_hooks_with_kwargs", dict, lost)
    if with_kwargs is not None:
        with_kwargs.pop(handle.id, None)
