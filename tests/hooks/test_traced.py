"""Hooks inside compiled code."""

import gc
from weakref import ref

import pytest
import torch
from torch import nn

from lightning_hooks.hooks import Action, Handles, HookSwitch, by_module
from lightning_hooks.hooks.places import Places
from lightning_hooks.hooks.traced import _MARKS, TracedHooks
from tests.fake_cuda import code_for_cuda, in_graphs


def test_they_go_with_their_module_at_once():
    module, handles = nn.Linear(1, 1), Handles()
    (own,) = by_module([Action(module, tensor, print) for tensor in ("input", "output", "input_grad")], set())
    hooks = TracedHooks(own, HookSwitch(), Handles(), Places(), Places())
    hooks.register(handles)
    handles.close()
    marks, gone = len(_MARKS), ref(module)
    gc.disable()
    try:
        del module, own, hooks
        assert gone() is None and len(_MARKS) == marks - 3
    finally:
        gc.enable()


@pytest.mark.parametrize("name", ["read", "read_without_gradients", "read_grad", "change_grad"])
def test_the_compiler_leaves_their_operations_out_of_cuda_graphs(name):
    pytest.importorskip("triton")

    def compute(x, mark):
        y = torch.relu(x) + 1
        changed = getattr(torch.ops.lightning_hooks, name)(y, mark)
        return torch.sin(y) if changed is None else (torch.sin(y), changed)

    code = code_for_cuda(compute, torch.randn(64, 64), torch.tensor(1))
    call = f"torch.ops.lightning_hooks.{name}.default("
    assert call in code and call not in in_graphs(code) and "triton_poi_fused" in in_graphs(code)
