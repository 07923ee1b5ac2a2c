"""Hooks of many modules are registered and removed together, take little memory, and none is left after an error."""

import gc
import pickle
from functools import partial
from types import SimpleNamespace
from weakref import ref

import pytest
import torch
from torch import nn

from lightning_hooks.hooks import Action, Handles, HookSwitch, ModuleHooks
from lightning_hooks.hooks.eager import ForwardHook, PreHook
from lightning_hooks.hooks.handles import for_each
from lightning_hooks.hooks.plain import IS_BUILT, PlainHook, PlainPreHook

PLAIN = PlainHook if IS_BUILT else ForwardHook


class Pair(nn.Module):
    def forward(self, x):
        return x * 2, {"other": x * 3}


class Elsewhere(nn.Linear):
    """Keeps forward hooks where nobody looks for them."""

    def __init__(self):
        super().__init__(1, 1)
        self.inner = nn.Linear(1, 1)

    def register_forward_hook(self, *args, **kwargs):
        return self.inner.register_forward_hook(*args, **kwargs)


class OwnHandle(Elsewhere):
    """Its handles are of a class of its own, with nothing but `remove`."""

    def register_forward_hook(self, *args, **kwargs):
        return SimpleNamespace(remove=super().register_forward_hook(*args, **kwargs).remove)


def turned_on():
    switch = HookSwitch()
    switch.is_on = True
    return switch


def on(model):
    """The kinds of forward hooks on each module."""
    return [[type(hook) for hook in module._forward_hooks.values()] for module in model]


def test_they_are_put_on_and_taken_off_many_times_without_those_of_others():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    users = [module.register_forward_hook(lambda *given: None) for module in model]
    seen = []
    actions = [Action(module, "output", seen.append) for module in model[:2]]
    actions += [Action(model[2], "input", seen.append), Action(model[2], "output_grad", seen.append, "[0]")]
    hooks, handles = ModuleHooks(actions, set(), turned_on(), Handles()), Handles()
    for round_number in range(1, 4):
        hooks.register(handles)
        assert [kinds[1:] for kinds in on(model)] == [[PLAIN], [PLAIN], [ForwardHook]]
        assert [type(hook) for hook in model[2]._forward_pre_hooks.values()] == [PlainPreHook]
        model(torch.ones(1, 2))
        assert len(seen) == 3 * round_number
        handles.close()
        handles.close()
        assert [len(kinds) for kinds in on(model)] == [1, 1, 1] and not model[2]._forward_pre_hooks
        assert not model[2]._forward_hooks_with_kwargs and not model[2]._forward_pre_hooks_with_kwargs
    for handle in users:
        handle.remove()
    assert on(model) == [[], [], []]


@pytest.mark.parametrize("kind", [Elsewhere, OwnHandle])
def test_a_module_that_registers_hooks_in_its_own_way_is_left_without_one(kind):
    module, handles = kind(), Handles()
    hooks = ModuleHooks([Action(module, "output", print)], set(), turned_on(), Handles())
    for _ in range(3):
        hooks.register(handles)
        assert on([module.inner]) == [[PLAIN]] and on([module]) == [[]]
        handles.close()
        assert on([module.inner]) == [[]]


@pytest.mark.parametrize("tensor", ["output", "input"])
def test_the_hooks_go_where_torch_looks_for_them_when_a_module_has_got_the_state_of_another(tensor):
    module, seen, handles = nn.Linear(1, 1), [], Handles()
    hooks = ModuleHooks([Action(module, tensor, seen.append)], set(), turned_on(), Handles())
    hooks.register(handles)
    handles.close()
    module.__dict__.update(pickle.loads(pickle.dumps(module)).__dict__)
    for number in (1, 2):
        hooks.register(handles)
        module(torch.ones(1, 1))
        assert len(module._forward_hooks) + len(module._forward_pre_hooks) == 1 and len(seen) == number
        handles.close()
        assert not module._forward_hooks and not module._forward_pre_hooks and not module._forward_pre_hooks_with_kwargs


class Sum(nn.Module):
    def forward(self, x, other=None):
        parts = x if isinstance(x, tuple) else (x,)
        return sum(each.float().sum() for each in (*parts, *([] if other is None else [other])))


class Own(torch.Tensor):
    pass


def given():
    """Arguments of a call, and the number of tensors in them that are measured."""
    x = torch.ones(2, requires_grad=True)
    computed, wide = x * 2, (x * 3).double()
    yield (computed,), {}, 1
    yield (wide,), {}, 1
    yield (x,), {}, 1
    yield (torch.ones(1),), {}, 1
    yield (torch.arange(2),), {}, 0
    yield ((computed, x),), {}, 2
    yield (computed, wide), {}, 2
    yield (computed, computed), {}, 1
    yield (computed,), {"other": wide}, 2
    yield (), {"x": computed}, 1
    yield (computed.as_subclass(Own),), {}, 1


def reads_input(module, called, *, recomputed):
    seen, handles = [], Handles()
    action = Action(module, "input", seen.append, recomputed=recomputed)
    ModuleHooks([action], called, turned_on(), Handles()).register(handles)
    return seen


def call(module, args, kwargs, _):
    module(*args, **kwargs)


@pytest.mark.parametrize("again", [False, True], ids=["once", "recomputed"])
def test_a_pre_hook_that_only_reads_sees_what_the_general_one_sees_but_no_recomputation(again):
    for args, kwargs, tensors in given():
        module, called = Sum(), set()
        plain, general = (reads_input(module, called, recomputed=recomputed) for recomputed in (False, True))
        assert [type(hook) for hook in module._forward_pre_hooks.values()] == [PlainPreHook, PreHook]
        if again:  # as activation checkpointing, which calls modules inside a backward
            x = torch.ones(1, requires_grad=True)
            x.register_hook(partial(call, module, args, kwargs))
            x.sum().backward()
        else:
            module(*args, **kwargs)
        assert called == {id(module)} and len(general) == tensors
        assert [id(each) for each in plain] == ([] if again else [id(each) for each in general])


def test_hooks_that_others_register_between_two_batches_run_before_ours():
    module, seen, handles = nn.Linear(1, 1), [], Handles()
    hooks = ModuleHooks([Action(module, "output", lambda t: seen.append(t.item()))], set(), turned_on(), Handles())
    hooks.register(handles)
    handles.close()
    module.register_forward_hook(lambda module, args, output: output * 0 + 7)
    hooks.register(handles)
    module(torch.ones(1, 1))
    assert seen == [7.0]


@pytest.mark.parametrize("changes", [False, True])
def test_what_a_plain_hook_does_not_look_at_is_seen_all_the_same(changes):
    module, outputs, grads, called = Pair(), [], [], set()

    def grad(tensor):
        grads.append(tensor.tolist())
        return tensor * 10 if changes else None

    actions = [Action(module, "output", outputs.append), Action(module, "output_grad", grad, changes=changes)]
    handles = Handles()
    hooks = ModuleHooks(actions, called, turned_on(), handles)
    hooks.register(handles)
    for _ in range(3):
        x = torch.ones(1, requires_grad=True)
        first, second = module(x)
        (first + second["other"]).sum().backward()
        assert x.grad.tolist() == [50.0 if changes else 5.0]
    assert len(outputs) == 6 and grads == [[1.0]] * 6 and called == {id(module)}
    handles.close()
    assert on([module]) == [[]] and not len(handles)


def test_one_that_sees_only_results_or_only_gradients_meets_other_results():
    for kept in ("output", "output_grad"):
        module, seen, handles = Pair(), [], Handles()
        hooks = ModuleHooks([Action(module, kept, seen.append)], set(), turned_on(), Handles())
        hooks.register(handles)
        x = torch.ones(1, requires_grad=True)
        first, second = module(x)
        assert len(seen) == (2 if kept == "output" else 0)
        (first + second["other"]).sum().backward()
        assert len(seen) == 2


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_error_while_they_are_taken_off_leaves_none_of_the_others(error):
    class Fails:
        tried = 0

        def remove(self):
            self.tried += 1
            if self.tried == 1:
                raise error("once")

    model, handles = nn.Sequential(*(nn.Linear(1, 1) for _ in range(3))), Handles()
    hooks = ModuleHooks([Action(module, "output", print) for module in model], set(), turned_on(), Handles())
    hooks.register(handles)
    handles.keep(Fails())
    hooks.register(handles)
    with pytest.raises(error, match="once"):
        handles.close()
    assert on(model) == [[], [], []]
    handles.close()  # The second call removes the handle whose removal was interrupted.
    assert not len(handles)


def test_everything_has_its_turn_before_the_first_failure_is_raised():
    done = []

    def act(number):
        done.append(number)
        if number in (2, 3):
            raise KeyboardInterrupt(number)

    with pytest.raises(KeyboardInterrupt, match="2"):
        for_each(act, [1, 2, 3, 4])
    assert done == [1, 2, 3, 4]


@pytest.mark.skipif(not IS_BUILT, reason="general hooks hold their actions, which hold the module")
def test_a_module_that_is_gone_is_passed_over_and_not_kept():
    model, handles = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1)), Handles()
    hooks = ModuleHooks([Action(module, "output", print) for module in model], set(), HookSwitch(), Handles())
    hooks.register(handles)
    del model[0]
    gc.collect()
    handles.close()
    hooks.register(handles)
    assert on(model) == [[PLAIN]] and len(handles) == 1


def test_hooks_that_read_arguments_go_with_their_module_at_once():
    module, handles = nn.Linear(1, 1), Handles()
    hooks = ModuleHooks([Action(module, "input", print)], set(), HookSwitch(), Handles())
    hooks.register(handles)
    handles.close()
    gone = ref(module)
    gc.disable()
    try:
        del module, hooks
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("kept", ["_forward_pre_hooks", "_forward_pre_hooks_with_kwargs"])
def test_hooks_are_registered_anew_on_a_module_with_another_dictionary(kept):
    layer, seen, handles = nn.Linear(1, 1), [], Handles()
    hooks = ModuleHooks([Action(layer, "input", seen.append)], set(), turned_on(), Handles())
    for _ in range(3):
        hooks.register(handles)
        layer(torch.ones(1, 1))
        handles.close()
        assert not layer._forward_pre_hooks and not layer._forward_pre_hooks_with_kwargs
        setattr(layer, kept, type(getattr(layer, kept))())
    assert len(seen) == 3
