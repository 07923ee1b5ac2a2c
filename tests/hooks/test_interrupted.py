"""Ctrl-C between any two instructions of registering hooks: closing the handles removes every hook that torch has added."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn

from lightning_hooks import assert_no_hooks
from lightning_hooks.hooks import Action, Handles, HookSwitch, ModuleHooks
from lightning_hooks.hooks.user_kinds import (
    optimizer_hook,
    register_backward,
    register_first,
    register_optimizer,
    register_post_accumulate,
    register_saved,
)


def is_interrupted_at(number: int, call: Callable[[], None]) -> bool:
    """Call a function, and raise KeyboardInterrupt at one of its instructions, counted over all functions that it calls.

    No garbage is collected meanwhile: functions that other packages register with `gc.callbacks` are not among those counted.

    The call has a thread of its own. A trace can raise before an instruction that calls `__exit__`, which a signal cannot. The
    state of torch that a `with` statement changes, such as `DisableTorchFunctionSubclass`, then ends with the thread.

    Returns:
        Whether the function has so many instructions.
    """
    count = 0

    def trace(frame: Any, event: str, argument: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        if event == "opcode":
            count += 1
            if count == number:
                raise KeyboardInterrupt
        return trace

    def is_interrupted() -> bool:
        gc.disable()
        # Python 3.12 traces instructions only if the frame that calls `settrace` asks for them.
        sys._getframe().f_trace_opcodes = True
        sys.settrace(trace)
        try:
            call()
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(None)
            gc.enable()
        return False

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(is_interrupted).result()


def ignore(*args: Any, **kwargs: Any) -> None: ...


def module_hooks(model: nn.Module, optimizer: Any, handles: Handles) -> Callable[[], None]:
    tensors = ((0, "output"), (0, "output_grad"), (1, "input"), (1, "output"))
    actions = [Action(model[i], tensor, ignore) for i, tensor in tensors]  # type: ignore[index]
    hooks = ModuleHooks(actions, set(), HookSwitch(), Handles())
    return lambda: hooks.register(handles)


def module_hooks_again(model: nn.Module, optimizer: Any, handles: Handles) -> Callable[[], None]:
    register = module_hooks(model, optimizer, handles)
    register()
    handles.close()
    return register


def parameter_hook(model: nn.Module, optimizer: Any, handles: Handles) -> Callable[[], None]:
    return lambda: handles.register(model[0].weight.register_hook, PackageHook(), key="key")  # type: ignore[index, union-attr]


class PackageHook(torch.nn.Identity):
    """A hook whose module is one of this package, as `assert_no_hooks` looks for."""

    __module__ = "lightning_hooks.tests"


def full_backward(model: nn.Module, optimizer: Any, handles: Handles) -> Callable[[], None]:
    return lambda: (
        [
            register_backward(model, ignore, HookSwitch(), handles, before=before, prepend=prepend)
            for before in (True, False)
            for prepend in (True, False)
        ]
        and None
    )


def first(model: nn.Module, optimizer: Any, handles: Handles) -> Callable[[], None]:
    return lambda: [register_first(model, ignore, HookSwitch(), handles, before=before) for before in (True, False)] and None


def post_accumulate(model: nn.Module, optimizer: Any, handles: Handles) -> Callable[[], None]:
    return lambda: register_post_accumulate(model[0].weight, ignore, HookSwitch(), handles)  # type: ignore[index, arg-type, union-attr]


def of_optimizer(model: nn.Module, optimizer: Any, handles: Handles) -> Callable[[], None]:
    hook = optimizer_hook(ignore, None)
    return lambda: [register_optimizer(optimizer, hook, handles, before=before) for before in (True, False)] and None


def saved(model: nn.Module, optimizer: Any, handles: Handles) -> Callable[[], None]:
    return lambda: register_saved(model, (ignore, ignore), HookSwitch(), handles, is_due=lambda: True)


CASES = [module_hooks, module_hooks_again, parameter_hook, full_backward, first, post_accumulate, of_optimizer, saved]


def hooks_of(owner: Any) -> list[Any]:
    names = ("_backward_hooks", "_post_accumulate_grad_hooks")
    kept = [*vars(owner).values(), *(getattr(owner, name, None) for name in names)]
    names_of = [name for name in dir(owner) if "hook" in name]
    kept += [getattr(owner, name) for name in names_of]
    return [entry for each in kept if isinstance(each, dict) for entry in each if isinstance(entry, int)]


@pytest.mark.parametrize("case", CASES, ids=[case.__name__ for case in CASES])
def test_an_interruption_at_any_instruction_leaves_no_hook(case: Callable[..., Callable[[], None]]) -> None:
    number, done = 0, False
    while not done:
        number += 1
        model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1)).requires_grad_(case is not post_accumulate)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        handles = Handles()
        register = case(model, optimizer, handles)
        done = not is_interrupted_at(number, register)
        assert not done or hooks_of(model) or hooks_of(model[0]) or hooks_of(model[0].weight) or hooks_of(optimizer)
        handles.close()
        assert_no_hooks(model)
        owners = [model, *model, *model.parameters(), optimizer]
        assert not any(hooks_of(owner) for owner in owners), f"instruction {number}"
        assert all(parameter.requires_grad == (case is not post_accumulate) for parameter in model.parameters())
    assert number > 20
    assert torch._C._is_torch_function_enabled()  # else tests that follow get other results for subclasses of Tensor


def test_a_forward_that_ctrl_c_ends_leaves_no_hooks_for_saved_tensors() -> None:
    class Interrupted(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise KeyboardInterrupt

    module, switch, handles, packed = Interrupted(), HookSwitch(), Handles(), []
    switch.is_on = True
    pair = (lambda tensor: packed.append(tensor) or tensor, lambda tensor: tensor)
    register_saved(module, pair, switch, handles, is_due=lambda: True)
    with pytest.raises(KeyboardInterrupt):
        module(torch.ones(1))
    handles.close()
    torch.ones(1, requires_grad=True).square()
    assert packed == []


def test_a_registration_that_torch_refuses_keeps_nothing() -> None:
    handles = Handles()
    with pytest.raises(RuntimeError, match="cannot register a hook on a tensor that doesn't require gradient"):
        handles.register(torch.ones(1).register_hook, ignore)
    assert len(handles) == 0


@pytest.mark.parametrize("case", [module_hooks, module_hooks_again, of_optimizer], ids=lambda case: case.__name__)
def test_a_second_close_removes_what_an_interrupted_one_has_left(case: Callable[..., Callable[[], None]]) -> None:
    number, done = 0, False
    while not done:
        number += 1
        model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        handles = Handles()
        case(model, optimizer, handles)()
        done = not is_interrupted_at(number, handles.close)
        handles.close()
        assert not any(hooks_of(owner) for owner in (model, *model, optimizer)), f"instruction {number}"
