"""Hooks inside compiled code."""

import gc
from weakref import ref

from torch import nn

from lightning_hooks.hooks import Action, Handles, HookSwitch, by_module
from lightning_hooks.hooks.traced import TracedHooks


def test_they_go_with_their_module_at_once():
    module, handles = nn.Linear(1, 1), Handles()
    (own,) = by_module([Action(module, tensor, print) for tensor in ("input", "output", "input_grad")], set())
    hooks = TracedHooks(own, HookSwitch(), Handles())
    hooks.register(handles)
    handles.close()
    gone = ref(module)
    gc.disable()
    try:
        del module, own, hooks
        assert gone() is None
    finally:
        gc.enable()
