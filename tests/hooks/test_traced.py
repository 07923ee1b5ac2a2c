"""Hooks inside compiled code."""

import gc
from weakref import ref

from torch import nn

from lightning_hooks.hooks import Gate, Handles, HookSite, TensorAction
from lightning_hooks.hooks.traced import TracedSite


def test_they_go_with_their_module_at_once():
    module, handles, look = nn.Linear(1, 1), Handles(), TensorAction("", print)
    site = TracedSite(HookSite(module, input=(look,), output=(look,), input_grad=(look,)), Gate(), Handles())
    site.register(handles)
    handles.close()
    gone = ref(module)
    gc.disable()
    try:
        del module, site
        assert gone() is None
    finally:
        gc.enable()
