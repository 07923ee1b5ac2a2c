"""Plain hooks: the C++ classes, with both ways to hook tensors."""

import copy
import gc
import io
import pickle
import warnings
import weakref
from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import nn

from lightning_hooks import StatsMonitor, Watch, backends, instrument
from lightning_hooks.hooks import Action, Handles, HookSwitch, ModuleHooks, plain

pytestmark = pytest.mark.skipif(not plain.IS_BUILT, reason="there are no compiled ones")


@pytest.fixture
def tensor_hooks():
    """Chooses how the C++ hooks register hooks on gradients."""
    plain.choose_tensor_hooks()  # Only the first call has an effect.
    yield backends.hooks().module.place_hooks_in
    plain.choose_tensor_hooks.cache_clear()
    plain.choose_tensor_hooks()


@pytest.fixture(params=["registered", "direct"])
def kind(request, tensor_hooks):
    tensor_hooks(OrderedDict if request.param == "direct" else None)
    return plain


class Seen:
    """A hooked module, and the tensors that its hook got."""

    def __init__(self, kind, module, *, read=True, grad=True):
        self.switch, self.called, self.outputs, self.grads, self.others = HookSwitch(), set(), [], [], []
        self.switch.is_on = True
        self.grad = kind.GradReader(self.switch, self.grads.append) if grad else None
        self.hook = kind.PlainHook(self.switch, self.called, self.outputs.append if read else None, self.grad, self.otherwise)
        self.handle = module.register_forward_hook(self.hook)

    def otherwise(self, *given):
        self.others.append(given)
        return None


def test_results_and_their_gradients_are_seen(kind):
    layer, x = nn.Linear(2, 3), torch.randn(4, 2)
    seen = Seen(kind, layer)
    out = layer(x)
    (out * 2).sum().backward()
    assert [id(t) for t in seen.outputs] == [id(out)] and seen.called == {id(layer)} and not seen.others
    assert [grad.unique().tolist() for grad in seen.grads] == [[2.0]]


def test_hooks_that_are_registered_later_come_after_and_can_be_removed(kind):
    layer, order = nn.Linear(2, 3), []
    seen = Seen(kind, layer)
    out = layer(torch.ones(1, 2))
    out.register_hook(lambda grad: order.append(len(seen.grads)) or 2 * grad)
    gone = out.register_hook(lambda grad: order.append("removed"))
    gone.remove()
    out.sum().backward()
    assert order == [1] and seen.grads[0].tolist() == [[1.0] * 3] and layer.bias.grad.tolist() == [2.0] * 3


def test_two_modules_that_return_one_tensor_both_see_its_gradient(kind):
    inner = nn.Linear(2, 3)
    outer = nn.Sequential(inner)
    first, second = Seen(kind, inner), Seen(kind, outer)
    outer(torch.ones(1, 2)).sum().backward()
    assert len(first.grads) == len(second.grads) == 1


def test_only_the_gradient_of_the_loss_is_seen(kind):
    layer, x = nn.Linear(2, 3), torch.ones(1, 2, requires_grad=True)
    seen = Seen(kind, layer)
    for announced in (False, True):
        seen.switch.awaits_loss = announced
        out = layer(x).square()
        (inner,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        assert not seen.grads
        if announced:
            seen.switch.begin_backward()
        (out.sum() + 0 * inner.sum()).backward()
        seen.switch.end_backward(waits=announced)
        assert len(seen.grads) == 1
        seen.grads.clear()


def test_both_ways_to_hook_tensors_give_the_same_numbers(tensor_hooks):
    def step():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Dropout(0.0), nn.Linear(4, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with instrument(
            model, [StatsMonitor([Watch(modules="*", tensors=["output", "output_grad"])])], optimizer=optimizer
        ) as watched:
            for _ in range(2):  # The first step is measured in Python.
                model(torch.randn(3, 4)).square().sum().backward()
                optimizer.step()
            return watched.view.moments[:-1]  # The last row is the loss, which nobody noted.

    found = []
    for dictionary in (None, OrderedDict):
        tensor_hooks(dictionary)
        found.append(step())
    assert (found[0][:, 0] > 0).all()
    np.testing.assert_array_equal(*found)


def test_only_what_was_asked_for_is_seen(kind):
    layer = nn.Linear(2, 3)
    seen = Seen(kind, layer, read=False)
    layer(torch.ones(1, 2)).sum().backward()
    assert not seen.outputs and len(seen.grads) == 1
    seen.handle.remove()
    seen = Seen(kind, layer, grad=False)
    layer(torch.ones(1, 2)).sum().backward()
    assert len(seen.outputs) == 1 and not seen.grads


def test_a_switch_that_is_off_lets_everything_pass(kind):
    layer = nn.Linear(2, 3)
    seen = Seen(kind, layer)
    out = layer(torch.ones(1, 2))
    seen.switch.is_on = False
    out.sum().backward()
    layer(torch.ones(1, 2)).sum().backward()
    assert len(seen.outputs) == 1 and not seen.grads and not seen.others
    assert seen.grad(None) is None


class Returns(nn.Module):
    def __init__(self, made):
        super().__init__()
        self.made = made

    def forward(self, x):
        return self.made(x)


@pytest.mark.parametrize(
    "made",
    [lambda x: (x * 2, x), lambda x: {"a": x * 2}, lambda x: x, lambda x: x.long(), lambda x: None, lambda x: nn.Parameter(x)],
    ids=["tuple", "dict", "leaf", "integers", "nothing", "parameter"],
)
def test_other_results_go_to_the_other_hook(kind, made):
    module, x = Returns(made), torch.ones(2)
    seen = Seen(kind, module)
    out = module(x)
    ((hook, given_module, args, output),) = seen.others
    assert hook is seen.hook and given_module is module and args == (x,) and output is out
    assert not seen.outputs and not seen.grads


def test_what_the_other_hook_returns_takes_the_place_of_the_result(kind):
    module = Returns(lambda x: (x,))
    switch = HookSwitch()
    switch.is_on = True
    module.register_forward_hook(kind.PlainHook(switch, set(), None, None, lambda *given: "instead"))
    assert module(torch.ones(1)) == "instead"


def test_a_recomputation_is_not_seen_twice(kind):
    layer = nn.Linear(2, 2)
    seen = Seen(kind, layer)
    out = torch.utils.checkpoint.checkpoint(layer, torch.ones(1, 2, requires_grad=True), use_reentrant=False)
    out.sum().backward()
    assert len(seen.outputs) == 1 and len(seen.grads) == 1


def test_hooks_of_the_user_on_the_same_tensor_live_beside_ours(kind):
    layer = nn.Linear(2, 2)
    first = []
    early = layer.register_forward_hook(lambda module, args, out: out.register_hook(lambda grad: first.append(1)) and None)
    seen = Seen(kind, layer)
    out = layer(torch.ones(1, 2))
    later = out.register_hook(lambda grad: grad * 3)
    gone = out.register_hook(lambda grad: grad * 100)
    gone.remove()
    out.sum().backward()
    assert first == [1] and len(seen.grads) == 1 and layer.bias.grad.tolist() == [3.0, 3.0]
    early.remove()
    later.remove()
    seen.handle.remove()


def test_our_hook_alone_leaves_room_for_others(kind):
    layer = nn.Linear(2, 2)
    seen = Seen(kind, layer)
    out = layer(torch.ones(1, 2))
    handle = out.register_hook(lambda grad: grad * 3)
    out.retain_grad()
    out.sum().backward(retain_graph=True)
    handle.remove()
    out.sum().backward()
    assert len(seen.grads) == 2 and layer.bias.grad.tolist() == [4.0, 4.0] and out.grad.tolist() == [[4.0, 4.0]]


def test_a_result_that_is_changed_in_place_has_the_gradient_that_it_had_before(kind):
    layer = nn.Linear(2, 2)
    seen, later = Seen(kind, layer), []
    out = layer(torch.ones(1, 2))
    out.register_hook(lambda grad: later.append(grad.tolist()))
    out.mul_(3)
    out.register_hook(lambda grad: later.append(grad.tolist()))
    (out * 2).sum().backward()
    assert [grad.tolist() for grad in seen.grads] == [[[6.0, 6.0]]]
    assert later == [[[2.0, 2.0]], [[6.0, 6.0]]]


def test_a_result_is_written_without_a_hook_and_without_a_warning(kind):
    layer, file = nn.Linear(2, 2), io.BytesIO()
    seen = Seen(kind, layer)
    out = layer(torch.ones(1, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.save(out, file)
    file.seek(0)
    again = torch.load(file)
    assert torch.equal(again, out) and not again._backward_hooks
    out.sum().backward()
    assert len(seen.grads) == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.complex64], ids=str)
def test_results_of_other_types(kind, dtype):
    module, x = Returns(lambda x: x * 2), torch.ones(2, dtype=dtype, requires_grad=True)
    seen = Seen(kind, module)
    module(x).abs().sum().backward()
    looks = int(dtype.is_floating_point)
    assert (len(seen.outputs), len(seen.grads), len(seen.others)) == (looks, looks, 1 - looks)


def test_an_error_in_a_reader_reaches_the_caller(kind):
    layer, switch = nn.Linear(2, 2), HookSwitch()
    switch.is_on = True

    def fails(tensor):
        raise ValueError("no")

    handle = layer.register_forward_hook(kind.PlainHook(switch, set(), fails, None, print))
    with pytest.raises(ValueError, match="no"):
        layer(torch.ones(1, 2))
    handle.remove()
    layer.register_forward_hook(kind.PlainHook(switch, set(), None, kind.GradReader(switch, fails), print))
    with pytest.raises(ValueError, match="no"):
        layer(torch.ones(1, 2)).sum().backward()


def test_copies_carry_a_function_of_the_standard_library_that_does_nothing(kind):
    layer = nn.Linear(2, 2)
    seen = Seen(kind, layer)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), pickle.loads(pickle.dumps(layer, 2))):
        assert [hook.__module__ for hook in other._forward_hooks.values()] == ["contextlib"]
        assert torch.equal(other(torch.ones(1, 2)), layer.forward(torch.ones(1, 2)))
    assert not seen.outputs


def test_hooks_that_point_at_one_another_are_collected(kind):
    class Owner:
        pass

    def made():
        owner, switch = Owner(), HookSwitch()
        owner.look = kind.GradReader(switch, lambda tensor: owner)
        owner.hook = kind.PlainHook(switch, set(), None, owner.look, lambda *given: owner)
        return weakref.ref(owner)

    known = made()
    gc.collect()
    assert known() is None


def test_wrong_arguments_are_refused():
    switch = HookSwitch()
    for wrong in ((switch,), (switch, print, print)):
        with pytest.raises(TypeError, match="expected 2 arguments"):
            plain.GradReader(*wrong)
    with pytest.raises(TypeError, match="expected the gradient"):
        plain.GradReader(switch, print)()
    with pytest.raises(TypeError, match="the module, its arguments and its result"):
        plain.PlainHook(switch, set(), None, None, print).run(1)
    with pytest.raises(AttributeError):
        plain.GradReader(switch, print).switch = None
    for wrong in (None, weakref.proxy(switch)):  # The C++ hook would read their memory as that of a switch.
        with pytest.raises(TypeError, match="expected a switch"):
            plain.GradReader(wrong, print)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda switch: pickle.loads(pickle.dumps(switch))])
def test_a_copy_of_a_switch_is_off(copied):
    switch = HookSwitch()
    switch.is_on = switch.traced = True
    other = copied(switch)
    assert (other.is_on, other.traced, switch.is_on) == (False, False, True)
    switch.turn_off()
    assert not switch.is_on


def test_arguments_may_contain_themselves():
    nest, seen = [torch.ones(1)], []
    nest.append({"again": nest})
    layer, handles, switch = Takes(), Handles(), HookSwitch()
    ModuleHooks([Action(layer, "output_grad", seen.append)], set(), switch, handles).register(handles)
    switch.is_on = True
    layer(torch.ones(1, requires_grad=True), nest).backward()
    handles.close()
    assert [grad.item() for grad in seen] == [1.0]


class Takes(nn.Module):
    """Takes an argument that it does not need."""

    def forward(self, x, context):
        return x * 2
