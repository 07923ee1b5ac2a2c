"""`Contribution` gets a module's share of the gradient of its input, whichever part of the graph a backward reaches."""

import pytest
import torch
from torch import nn

from lightning_hooks.hooks import Action, Handles, HookSwitch, ModuleHooks


class Twice(nn.Module):
    def forward(self, x):
        return x * 2, x * 3


class Sum(nn.Module):
    def forward(self, x, y):
        return x * 2 + y * 3


@pytest.fixture
def hooked():
    module, switch, seen, handles = Twice(), HookSwitch(), [], Handles()
    switch.is_on = True
    action = Action(module, "input_grad", lambda grad: seen.append(grad.tolist()))
    ModuleHooks([action], set(), switch, handles).register(handles)
    yield module, seen
    handles.close()


def test_uses_of_the_input_add_up_to_one_contribution(hooked):
    module, seen = hooked
    x = torch.ones(1, requires_grad=True)
    first, second = module(x)
    (first + second + 10 * x).sum().backward()
    assert seen == [[5.0]] and x.grad.tolist() == [15.0]


def test_a_use_that_the_backward_does_not_reach_counts_as_zero(hooked):
    module, seen = hooked
    x = torch.ones(1, requires_grad=True)
    first, second = module(x)
    first.sum().backward()
    assert seen == [[2.0]]
    second.sum().backward()
    assert seen == [[2.0], [3.0]]


def test_a_gradient_that_reaches_the_input_around_the_module_is_not_counted(hooked):
    module, seen = hooked
    x = torch.ones(1, requires_grad=True)
    before = x * 7
    first, _ = module(before)
    (first + before).sum().backward()
    assert seen == [[2.0]] and x.grad.tolist() == [21.0]


def test_each_action_sees_the_contribution_of_an_input_that_several_look_at():
    module, switch, seen, handles = Sum(), HookSwitch(), {"all": [], "first": []}, Handles()
    switch.is_on, paths = True, {"all": "", "first": "[0]"}
    actions = [
        Action(module, "input_grad", lambda grad, name=name: seen[name].append(grad.item()), path)
        for name, path in paths.items()
    ]
    ModuleHooks(actions, set(), switch, handles).register(handles)
    x = torch.ones(1, requires_grad=True)
    y = x * 7
    module(x, y).backward()
    handles.close()
    assert {name: sorted(grads) for name, grads in seen.items()} == {"all": [2.0, 3.0], "first": [2.0]}
