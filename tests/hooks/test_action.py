"""Several actions on one tensor: their order, the tensor that each gets, and the kind of hook that runs them."""

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from lightning_hooks import backends
from lightning_hooks.hooks import Action, BackwardPass, Handles, HookSwitch, ModuleHooks, is_recomputation
from lightning_hooks.hooks.eager import ForwardHook, WholeHook
from lightning_hooks.hooks.plain import IS_BUILT, PlainHook
from lightning_hooks.hooks.readers import read_in_order

PLAIN = PlainHook if IS_BUILT else ForwardHook


@pytest.fixture
def hooked():
    """Hooks a module with actions for a test."""
    handles = Handles()

    def hook(*actions):
        switch = HookSwitch()
        switch.is_on = True
        ModuleHooks(actions, set(), switch, handles).register(handles)
        return [type(hook) for hook in actions[0].owner._forward_hooks.values()]

    yield hook
    handles.close()


def double(module, args, kwargs, output):
    return output * 2


def test_any_number_of_readers_keeps_the_plain_hook(hooked):
    layer, order = nn.Linear(1, 1), []
    actions = [
        Action(layer, tensor, lambda given, name=(name, tensor): order.append(name))
        for name in "abc"
        for tensor in ("output", "output_grad")
    ]
    assert hooked(*actions) == [PLAIN]
    layer(torch.ones(1)).sum().backward()
    assert order == [*((name, "output") for name in "abc"), *((name, "output_grad") for name in "abc")]


@pytest.mark.parametrize(
    "other",
    [
        {"tensor": "input_grad"},
        {"tensor": "node"},
        {"tensor": "output", "path": "[0]"},
        {"tensor": "output", "changes": True},
        {"tensor": "output", "recomputed": True},
        {"tensor": "output_grad", "backward": BackwardPass.INNER},
    ],
)
def test_other_actions_take_the_general_hook(hooked, other):
    layer = nn.Linear(1, 1)
    kinds = hooked(Action(layer, "output", lambda tensor: None), Action(layer, call=lambda tensor: None, **other))
    assert kinds == [ForwardHook]


def test_whole_calls_keep_the_plain_hooks_around_them(hooked):
    layer, given = nn.Linear(1, 1, bias=False), {}
    with torch.no_grad():
        layer.weight.fill_(1.0)
    actions = [
        Action(layer, "input", lambda tensor: given.update(input=tensor.item())),
        Action(layer, "output", lambda tensor: given.update(before=tensor.item())),
        Action(layer, "output", double, whole=True),
        Action(layer, "output", lambda tensor: given.update(between=tensor.item())),
        Action(layer, "output", double, whole=True),
        Action(layer, "output_grad", lambda grad: given.update(grad=grad.item())),
    ]
    plain = [PlainHook, WholeHook, PlainHook, WholeHook, PlainHook]
    assert hooked(*actions) == (plain if IS_BUILT else [ForwardHook])
    (layer(torch.ones(1)) * 5).backward()
    assert given == {"input": 1.0, "before": 1.0, "between": 2.0, "grad": 5.0}


def test_a_gradient_is_read_and_changed_in_order_by_a_plain_hook(hooked):
    layer, grads = nn.Linear(1, 1), []

    def read(grad):
        grads.append(grad.item())

    actions = [Action(layer, "output_grad", read), Action(layer, "output_grad", lambda grad: grad * 3, changes=True)]
    assert hooked(*actions, actions[0], actions[0]) == [PLAIN]
    layer(torch.ones(1)).backward()
    assert grads == [1.0, 3.0, 3.0] and layer.bias.grad.item() == 3.0


def test_each_action_is_given_the_tensor_as_those_before_left_it(hooked):
    module, given = nn.Identity(), {}
    actions = [
        Action(module, "output", lambda tensor: given.update(first=tensor.item())),
        Action(module, "output", lambda tensor: tensor + 1, changes=True),
        Action(module, "output", lambda tensor: given.update(second=tensor.item())),
        Action(module, "output", double, whole=True),
        Action(module, "output", lambda tensor: given.update(third=tensor.item())),
    ]
    hooked(*actions)
    assert module(torch.ones(1)).item() == 4.0
    assert given == {"first": 1.0, "second": 2.0, "third": 4.0}


def test_what_a_reader_returns_is_not_used(hooked):
    layer = nn.Linear(1, 1)
    reader = Action(layer, "output_grad", lambda grad: grad * 3)
    hooked(reader, reader, Action(layer, "output_grad", lambda grad: None, changes=True))
    layer(torch.ones(1)).backward()
    assert layer.bias.grad.item() == 1.0


def test_all_readers_of_a_path_are_told_that_it_is_absent(hooked):
    module, told = nn.Identity(), []
    actions = [
        Action(module, "output", pytest.fail, ".a", absent=lambda found, tree, name=name: told.append((name, found)))
        for name in "ab"
    ]
    hooked(*actions)
    module({"b": torch.ones(1)})
    assert told == [("a", False), ("b", False)]


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_reader_can_ask_for_recomputations(hooked, reentrant):
    layer, calls = nn.Linear(1, 1), {"always": [], "once": []}
    hooked(
        Action(layer, "output", lambda tensor: calls["always"].append(is_recomputation()), recomputed=True),
        Action(layer, "output", lambda tensor: calls["once"].append(is_recomputation())),
        Action(layer, "input", lambda tensor: calls["always"].append(is_recomputation()), recomputed=True),
    )
    # A recomputation that is not reentrant stops at the last saved tensor, which is the result of the layer here.
    checkpoint(lambda x: layer(x).square(), torch.ones(1, requires_grad=True), use_reentrant=reentrant).backward()
    assert calls == {"always": [False, False, True, True], "once": [False]}


def test_a_reader_beside_a_change_is_not_called_in_a_recomputation(hooked):
    layer, outputs, changed = nn.Linear(1, 1), [], []
    hooked(
        Action(layer, "output", outputs.append),
        Action(layer, "output", lambda tensor: changed.append(1) or tensor * 2, changes=True),
        Action(layer, "output", outputs.append),
    )
    checkpoint(lambda x: layer(x).square(), torch.ones(1, requires_grad=True), use_reentrant=False).backward()
    assert len(outputs) == 2 and len(changed) == 2


def test_readers_are_called_in_order_until_one_fails():
    order = []

    def fails(tensor):
        raise ValueError("no")

    read = read_in_order(
        [lambda tensor: order.append(1), read_in_order([lambda t: order.append(2), lambda t: order.append(3)])]
    )
    assert read(torch.ones(1)) is None and order == [1, 2, 3]
    with pytest.raises(ValueError, match="no"):
        read_in_order([order.append, fails, pytest.fail])(4)
    assert order == [1, 2, 3, 4]


def test_readers_that_point_at_one_another_are_collected():
    class Owner:
        pass

    def made():
        owner = Owner()
        owner.read = read_in_order([lambda tensor: owner, print])
        return weakref.ref(owner)

    known = made()
    gc.collect()
    assert known() is None


@pytest.mark.skipif(not IS_BUILT, reason="there are no compiled ones")
def test_wrong_arguments_are_refused():
    readers = backends.hooks().module.Readers
    with pytest.raises(TypeError, match="expected a tuple of readers"):
        readers([print])
    with pytest.raises(TypeError, match="expected 1 arguments"):
        readers()
    with pytest.raises(TypeError, match="expected the tensor"):
        readers((print,))()
