"""A hook that torch calls in place of a module does what a forward hook does, for whichever module is called."""

import copy
import io
import pickle
import sys
from weakref import ref

import pytest
import torch
from torch import nn

from lightning_hooks import Watch, assert_no_hooks, instrument, paused
from lightning_hooks.engine.compiled import compiled_modules
from lightning_hooks.taps import Gate, Handles, Line, ModuleHooks, Place, asked_for_hooks, calling, plain, plain_hooks
from lightning_hooks.taps.calling import SLOT
from tests.taps.test_looking import KINDS


@pytest.fixture(params=KINDS, ids=["python", "compiled"])
def kind(request):
    return request.param


class Seen:
    """A module with a hook in its slot, and what that saw."""

    def __init__(self, kind, module, changed=None):
        self.gate, self.called, self.outputs, self.grads, self.others = Gate(), set(), [], [], []
        self.gate.open = True
        self.changed = changed
        look = kind.LookHook(self.gate, lambda grad: self.grads.append(grad.sum().item()))
        self.hook = kind.PlainHook(
            self.gate, self.called, lambda out: self.outputs.append(out.sum().item()), look, self.otherwise
        )
        vars(module)[SLOT] = kind.StandIn(self.hook, ref(module))

    def otherwise(self, *given):
        self.others.append(given[1:])
        return self.changed


class Takes(nn.Module):
    def forward(self, x, *, times=1.0):
        return x * times

    def extra_repr(self):
        return "times"


def placed(model, *modules, registered=frozenset()):
    """Hooks on some modules, and the outputs they saw."""
    seen, gate = [], Gate()
    gate.open = True
    places = [Place(module, after=(Line("", lambda out: seen.append(out.sum().item())),)) for module in modules or [model]]
    hooks = ModuleHooks(places, gate, Handles(), registered)
    hooks.put_on(Handles())
    return hooks, seen


def clone_of(module):
    """As libraries for meta-learning make them: what the module is made of, with parameters of its own."""
    clone = type(module).__new__(type(module))
    vars(clone).update(vars(module))
    clone._parameters = {"weight": (module.weight.detach() * 2).requires_grad_(), "bias": None}
    return clone


def test_it_calls_the_module_and_then_looks(kind):
    module = Takes()
    seen = Seen(kind, module)
    x = torch.ones(3, requires_grad=True)
    out = module(x, times=2.0)
    (out * 5).sum().backward()
    assert seen.outputs == [6.0] and seen.grads == [15.0] and seen.called == {id(module)} and x.grad.tolist() == [10.0] * 3
    assert not seen.others and not module._forward_hooks


@pytest.mark.parametrize("changed", [None, "another"])
def test_what_its_hook_does_not_look_at_goes_elsewhere_and_may_be_replaced(kind, changed):
    module = nn.Identity()
    seen = Seen(kind, module, changed)
    assert module("text") == (changed or "text")
    assert seen.others == [(module, ("text",), "text")]


def test_a_closed_gate_lets_torch_call(kind):
    module = Takes()
    seen, calls = Seen(kind, module), []
    module.register_forward_hook(lambda *given: calls.append(given))
    seen.gate.open = False
    module(torch.ones(3, requires_grad=True))
    assert len(calls) == 1 and not seen.outputs and SLOT in vars(module)


def test_an_error_in_the_module_reaches_the_caller(kind):
    module = nn.Linear(2, 2)
    seen = Seen(kind, module)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        module(torch.ones(1, 3))
    assert not seen.outputs


def test_the_module_that_is_called_is_not_always_the_one_with_the_hook(kind):
    module = nn.Linear(1, 1, bias=False)
    seen = Seen(kind, module)
    clone, x = clone_of(module), torch.ones(1, 1)
    weight = module.weight.item()
    assert clone(x).item() == pytest.approx(2 * weight) and module(x).item() == pytest.approx(weight)
    assert seen.outputs == pytest.approx([2 * weight, weight]) and seen.called == {id(clone), id(module)}
    clone.register_forward_hook(lambda module, args, out: out * 10)  # into the dictionary that both share
    for called, expected in ((clone, 20 * weight), (module, 10 * weight), (clone, 20 * weight)):
        assert called(x).item() == pytest.approx(expected)
    assert list(module._forward_hooks.values())[0] is seen.hook and len(module._forward_hooks) == 2
    assert len(seen.outputs) == 5 and SLOT not in vars(module) and SLOT not in vars(clone)


def test_called_by_its_name_it_calls_the_module_it_was_made_for(kind):
    module = Takes()
    seen = Seen(kind, module)
    assert vars(module)[SLOT](torch.ones(2, requires_grad=True)).tolist() == [1.0, 1.0]
    assert seen.called == {id(module)}


@pytest.mark.parametrize("whose", ["forward", "forward_pre", "full_backward", "full_backward_pre", "everybody's"])
def test_it_gives_way_to_hooks_that_come_later(kind, whose):
    module, order = Takes(), []
    seen = Seen(kind, module)
    hook = lambda *given: order.append(len(seen.outputs))  # noqa: E731
    if whose == "everybody's":
        handle = nn.modules.module.register_module_forward_hook(lambda called, *given: hook() if called is module else None)
    else:
        handle = getattr(module, f"register_{whose}_hook")(hook)
    try:
        for _ in range(2):
            module(torch.ones(3, requires_grad=True)).sum().backward()
    finally:
        handle.remove()
    assert len(order) == 2 and seen.outputs == [3.0, 3.0] and seen.grads == [3.0, 3.0]
    assert SLOT not in vars(module) and list(module._forward_hooks.values()) == [seen.hook]
    if whose == "forward":
        assert order == [1, 2]  # it was there first


@pytest.mark.filterwarnings("ignore:.*torch.jit.*")
def test_it_gives_way_while_torch_traces(kind):
    module = Takes()
    seen = Seen(kind, module)
    traced = torch.jit.trace(module, torch.ones(2), check_trace=False)
    assert traced(torch.ones(2)).tolist() == [1.0, 1.0] and list(module._forward_hooks.values()) == [seen.hook]


def test_copies_are_without_it(kind):
    module = nn.Linear(2, 2)
    seen = Seen(kind, module)
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    copies = [
        copy.copy(module),
        copy.deepcopy(module),
        pickle.loads(pickle.dumps(module)),
        torch.load(file, weights_only=False),
    ]
    for other in copies:
        assert SLOT not in vars(other)
        other(torch.ones(1, 2))
    assert not seen.outputs


def test_a_compiler_passes_it_by(kind):
    module = Takes()
    seen = Seen(kind, module)
    run = torch.compile(lambda x: module(x, times=3.0), backend="eager", fullgraph=True)
    assert run(torch.ones(2, requires_grad=True)).tolist() == [3.0, 3.0] and not seen.outputs
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # of torch's compiler, where it goes on without a graph
def test_hooks_of_others_in_a_function_that_is_compiled(kind):
    module = Takes()
    seen = Seen(kind, module)
    module.register_forward_hook(lambda module, args, out: out * 10)
    run = torch.compile(lambda x: module(x), backend="eager")
    for _ in range(2):
        assert run(torch.ones(2, requires_grad=True)).tolist() == [10.0, 10.0]
    assert all(total == 2.0 for total in seen.outputs)
    torch._dynamo.reset()


def test_the_ones_in_python_are_traced_with_hooks_of_others():
    module = Takes()
    Seen(plain, module)
    module.register_forward_hook(lambda module, args, out: out * 10)
    run = torch.compile(lambda x: module(x), backend="eager", fullgraph=True)
    assert run(torch.ones(2, requires_grad=True)).tolist() == [10.0, 10.0]
    torch._dynamo.reset()


def test_a_model_that_is_gone_is_not_kept(kind):
    module = Takes()
    Seen(kind, module)
    known = ref(module)
    del module
    assert known() is None  # without the collector: nothing points back


def test_a_hook_that_goes_while_its_module_runs(kind):
    class Drops(nn.Module):
        def forward(self, x):
            vars(self).pop(SLOT)
            return x * 2

    module = Drops()
    seen = Seen(kind, module)
    assert module(torch.ones(2, requires_grad=True)).tolist() == [2.0, 2.0] and seen.outputs == [4.0]


def test_wrong_arguments_are_refused():
    quick = pytest.importorskip("lightning_hooks.taps.quick")
    with pytest.raises(TypeError, match="expected a plain hook, not 1"):
        quick.StandIn(1, ref(Takes()))
    for given in ((), (1, 2, 3)):
        with pytest.raises(TypeError, match=r"expected (2 arguments|a plain hook)"):
            quick.StandIn(*given)


def subclass(**methods):
    return type("Other", (nn.Linear,), methods)(1, 1)


NOT_FREE = {
    "hooked": lambda: hooked(nn.Linear(1, 1)),
    "compiled": lambda: with_own(nn.Linear(1, 1), SLOT, print),
    "said not to be compiled": lambda: with_own(nn.Linear(1, 1), SLOT, None),
    "forward of its own": lambda: with_own(nn.Linear(1, 1), "forward", torch.relu),
    "called in another way": lambda: subclass(__call__=lambda self, x: x),
    "carried out in another way": lambda: subclass(_call_impl=lambda self, x: x),
    "registers elsewhere": lambda: subclass(register_forward_hook=nn.Module.register_forward_pre_hook),
}


def hooked(module):
    module.register_forward_pre_hook(lambda *given: None)
    return module


def with_own(module, name, value):
    vars(module)[name] = value
    return module


@pytest.mark.parametrize("make", NOT_FREE.values(), ids=NOT_FREE)
def test_modules_that_torch_calls_in_another_way_keep_their_slot(make):
    module = make()
    before = dict(vars(module))
    assert not calling.is_free(module)
    hooks, _ = placed(module)
    assert vars(module).get(SLOT) is before.get(SLOT)
    hooks.take_off()
    assert list(vars(module)) == list(before)
    assert calling.is_free(nn.Linear(1, 1))


@pytest.mark.filterwarnings("ignore:.*torch.jit.*")
def test_a_scripted_module_keeps_its_slot():
    assert not calling.is_free(torch.jit.script(nn.Linear(1, 1)))


def test_where_torch_has_no_slot_hooks_are_registered(monkeypatch):
    monkeypatch.setattr(calling, "HAS_SLOT", False)
    module = Takes()
    hooks, seen = placed(module)
    module(torch.ones(1, requires_grad=True))
    assert seen == [1.0] and len(module._forward_hooks) == 1 and SLOT not in vars(module)
    hooks.take_off()


def test_only_what_was_put_there_is_taken_out():
    module = Takes()
    hooks, seen = placed(module)
    module.compile(backend="eager")
    theirs = vars(module)[SLOT]
    hooks.take_off()
    assert vars(module)[SLOT] is theirs and not seen


@pytest.mark.filterwarnings("ignore:matched modules were not called.*self_attn.out_proj")
def test_a_module_that_asks_for_hooks_of_others_finds_them():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(4, 1, 8, batch_first=True).eval()
    model = nn.Sequential(nn.Linear(4, 4), layer)
    assert asked_for_hooks(model) == {id(part) for part in layer.modules()}
    x = torch.randn(1, 2, 4)
    with instrument(model, watch=[Watch(modules="*", leaves=True, tensors="output", stats="mean")]) as watched, torch.no_grad():
        model(x)
        watched.step()
        values = watched.compute()
    assert any("1.linear1" in tag for tag in values)  # which the quick way of evaluation does not call
    assert list(plain_hooks(model[0])) == []


def test_the_public_ways_know_of_it():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    before = [list(vars(module)) for module in model.modules()]
    with instrument(model, watch=[Watch(modules="*", leaves=True, tensors="output", stats="mean")]):
        assert SLOT in vars(model[0]) and SLOT in vars(model[1]) and not compiled_modules(model)
        with pytest.raises(Exception, match=r"hooks of lightning_hooks are left on module 0, module 1"):
            assert_no_hooks(model)
        with paused(model):
            assert_no_hooks(model)
            assert not any(SLOT in vars(module) for module in model)
        assert SLOT in vars(model[0])
    assert_no_hooks(model)
    assert [list(vars(module)) for module in model.modules()] == before


def test_a_frame_of_somebody_else_is_nobodys():
    assert calling.caller(sys._getframe()) is None and calling.HAS_SLOT
