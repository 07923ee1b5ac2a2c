"""A user's own hooks: the arguments of each kind, the effect of its result, and that no hook is left. Numbers are by hand."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lightning_hooks import CustomHooks, Hook, HookError, NoMatchError, UnsupportedError, assert_no_hooks, instrument
from lightning_hooks.rules import MODULE_KINDS, OPTIMIZER_KINDS, PARAM_KINDS


class Chain(nn.Module):
    """y = 3·(2·x): at x = 1 the gradients are 3 for `first.weight`, 2 for `second.weight` and 6 for x."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Linear(1, 1, bias=False) for _ in range(2))
        nn.init.constant_(self.first.weight, 2.0)
        nn.init.constant_(self.second.weight, 3.0)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(self.first(x))
        return y


def pass_through(model: nn.Module) -> dict[str, float]:
    """One forward and backward at x = 1: the result and the gradients."""
    model.zero_grad()
    x = torch.ones(1, 1, requires_grad=True)
    y = model(x)
    y.backward()
    assert x.grad is not None
    found = {"y": y.item(), "x": x.grad.item()}
    return found | {name: p.grad.item() for name, p in model.named_parameters() if p.grad is not None}


PLAIN = {"y": 6.0, "x": 6.0, "first.weight": 3.0, "second.weight": 2.0}


def double_grad(parameter: Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.mul_(2)


def of(module: str) -> dict[str, str]:
    return {"modules": module}


CHANGES: list[Any] = [
    # h = 2 becomes 3 before `second` gets it
    ("forward_pre", of("second"), lambda m, args: (args[0] + 1,), {"y": 9.0, "second.weight": 3.0}),
    # one tensor stands for the arguments, as in torch
    ("forward_pre", of("second"), lambda m, args: args[0] + 1, {"y": 9.0, "second.weight": 3.0}),
    # h = 2 becomes 20, and the gradient that flows back to `first` is ten times as large
    (
        "forward",
        of("first"),
        lambda m, args, output: output * 10,
        {"y": 60.0, "x": 60.0, "first.weight": 30.0, "second.weight": 20.0},
    ),
    # the gradient of y is 2 instead of 1
    (
        "full_backward_pre",
        of("second"),
        lambda m, grad_output: (grad_output[0] * 2,),
        {"x": 12.0, "first.weight": 6.0, "second.weight": 4.0},
    ),
    # the gradient of h is 30 instead of 3
    (
        "full_backward",
        of("second"),
        lambda m, grad_input, grad_output: (grad_input[0] * 10,),
        {"x": 60.0, "first.weight": 30.0},
    ),
    # the gradient of h is 4 instead of 3, three times
    ("output_grad", of("first"), lambda grad: grad + 1, {"x": 8.0, "first.weight": 4.0}),
    ("node_pre", of("first"), lambda grad_outputs: (grad_outputs[0] + 1,), {"x": 8.0, "first.weight": 4.0}),
    ("input_grad", of("second"), lambda grad: grad + 1, {"x": 8.0, "first.weight": 4.0}),
    # a node that multiplies matrices has two inputs: h and the weight
    (
        "node",
        of("second"),
        lambda grad_inputs, grad_outputs: (grad_inputs[0] + 1, grad_inputs[1]),
        {"x": 8.0, "first.weight": 4.0},
    ),
    ("param_grad", {"params": "first.weight"}, lambda grad: grad + 100, {"first.weight": 103.0}),
    ("post_accumulate_grad", {"params": "first.weight"}, double_grad, {"first.weight": 6.0}),
]


@pytest.mark.parametrize(
    ("kind", "where", "call", "changed"), CHANGES, ids=lambda value: value if isinstance(value, str) else ""
)
def test_what_a_hook_returns_takes_the_place_of_what_it_was_given(
    kind: str, where: dict[str, str], call: Callable[..., Any], changed: dict[str, float]
) -> None:
    model = Chain()
    assert pass_through(model) == PLAIN
    with instrument(model, [CustomHooks([Hook(call, kind=kind, **where)])]):
        assert pass_through(model) == PLAIN | changed
    assert_no_hooks(model)
    assert pass_through(model) == PLAIN


def test_every_kind_that_can_change_something_is_shown_above() -> None:
    shown = {kind for kind, *_ in CHANGES}
    assert shown == {*MODULE_KINDS, *PARAM_KINDS} - {"saved_tensors"}
    assert set(OPTIMIZER_KINDS) == {"optimizer_step_pre", "optimizer_step_post"}


SEEN: list[Any] = [
    ("forward_pre", of("first"), [["first", (1.0,)]]),
    ("forward", of("first"), [["first", (1.0,), 2.0]]),
    ("full_backward_pre", of("first"), [["first", (3.0,)]]),
    ("full_backward", of("first"), [["first", (6.0,), (3.0,)]]),
    ("output_grad", of("first"), [[3.0]]),
    ("input_grad", of("first"), [[6.0]]),
    ("node_pre", of("first"), [[(3.0,)]]),
    ("node", of("first"), [[(6.0, 3.0), (3.0,)]]),
    ("param_grad", {"params": "first.weight"}, [[3.0]]),
    ("post_accumulate_grad", {"params": "first.weight"}, [[2.0]]),
]


def plainly(value: Any, names: dict[int, str]) -> Any:
    if isinstance(value, Tensor):
        return value.item()
    if isinstance(value, nn.Module):
        return names[id(value)]
    return tuple(plainly(item, names) for item in value)


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize(("kind", "where", "expected"), SEEN, ids=[kind for kind, *_ in SEEN])
def test_a_hook_is_called_with_what_torch_gives_for_its_kind(
    kind: str, where: dict[str, str], expected: list[Any], named: bool
) -> None:
    model = Chain()
    names = {id(module): name for name, module in model.named_modules()}
    seen: list[Any] = []

    def look(*args: Any) -> None:
        first = [args[0]] if named else []
        seen.append(first + [plainly(arg, names) for arg in args[len(first) :]])

    with instrument(model, [CustomHooks([Hook(look, kind=kind, named=named, **where)])]):
        assert pass_through(model) == PLAIN
    name = where.get("modules") or where["params"]
    assert seen == [([name] if named else []) + args for args in expected]


def test_every_kind_at_once_changes_nothing_when_it_only_looks() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2))
    x = torch.randn(5, 4, requires_grad=True)  # Without it, torch warns of full backward hooks.

    def gradients() -> list[Tensor]:
        torch.manual_seed(1)
        model.zero_grad()
        model(x).square().sum().backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    plain = gradients()
    ran: set[str] = set()

    def look(kind: str) -> Callable[..., None]:
        return lambda *args: ran.add(kind)

    hooks = [Hook(look(kind), kind=kind, modules="*") for kind in MODULE_KINDS if kind != "saved_tensors"]
    hooks += [Hook((lambda t: t, lambda t: t), kind="saved_tensors", modules="*")]
    hooks += [Hook(look(kind), kind=kind, params="*") for kind in PARAM_KINDS]
    with instrument(model, [CustomHooks(hooks)]):
        watched = gradients()
    assert all(torch.equal(one, other) for one, other in zip(watched, plain, strict=True))
    assert ran == {*MODULE_KINDS, *PARAM_KINDS} - {"saved_tensors"}
    assert_no_hooks(model)


# -- options ---------------------------------------------------------------------------------------------------------------


class Weighted(nn.Module):
    """x·times, called with a keyword."""

    def forward(self, x: Tensor, *, times: float = 1.0) -> Tensor:
        return x * times


class CallsWeighted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Weighted()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(x, times=3.0)
        return y


def test_with_kwargs_keyword_arguments_are_seen_and_changed() -> None:
    model = CallsWeighted()
    seen: list[Any] = []

    def before(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        seen.append(("before", args[0].item(), kwargs))
        return args, {"times": 5.0}

    def after(module: nn.Module, args: Any, kwargs: dict[str, Any], output: Tensor) -> Tensor:
        seen.append(("after", args[0].item(), kwargs, output.item()))
        return output + 1

    rules = [
        Hook(call, kind=kind, modules="inner", with_kwargs=True) for call, kind in ((before, "forward_pre"), (after, "forward"))
    ]
    with instrument(model, [CustomHooks(rules)]):
        assert model(torch.tensor(2.0)).item() == 11.0
    assert seen == [("before", 2.0, {"times": 3.0}), ("after", 2.0, {"times": 5.0}, 10.0)]


def test_without_kwargs_keyword_arguments_stay() -> None:
    model = CallsWeighted()
    with instrument(model, [CustomHooks([Hook(lambda module, args: (args[0] + 1,), kind="forward_pre", modules="inner")])]):
        assert model(torch.tensor(2.0)).item() == 9.0


@pytest.mark.parametrize(
    "result", [lambda args, kwargs: args, lambda args, kwargs: args[0], lambda args, kwargs: (args[0], args[0])]
)
def test_with_kwargs_a_pre_hook_must_return_both(result: Callable[..., Any]) -> None:
    model = CallsWeighted()
    rule = Hook(lambda module, args, kwargs: result(args, kwargs), kind="forward_pre", modules="inner", with_kwargs=True)
    with (
        instrument(model, [CustomHooks([rule])]),
        pytest.raises(HookError, match=r"hooks\[0\] .*forward_pre\) at inner must return"),
    ):
        model(torch.tensor(2.0))


@pytest.mark.parametrize(("prepend", "expected"), [(False, 30.0), (True, 21.0)])
def test_prepend_goes_before_the_forward_hooks_of_others(prepend: bool, expected: float) -> None:
    model = Chain()
    foreign = model.first.register_forward_hook(lambda module, args, output: output + 1)
    rule = Hook(lambda module, args, output: output * 10, kind="forward", modules="first", prepend=prepend)
    with instrument(model, [CustomHooks([rule])]):
        assert model.first(torch.ones(1, 1)).item() == expected  # (2 + 1)·10, or 2·10 + 1
    assert list(model.first._forward_hooks) == [foreign.id]


@pytest.mark.parametrize(("prepend", "expected"), [(False, 40.0), (True, 22.0)])
def test_prepend_goes_before_the_forward_pre_hooks_of_others(prepend: bool, expected: float) -> None:
    model = Chain()
    foreign = model.first.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    rule = Hook(lambda module, args: (args[0] * 10,), kind="forward_pre", modules="first", prepend=prepend)
    with instrument(model, [CustomHooks([rule])]):
        assert model.first(torch.ones(1, 1)).item() == expected  # 2·(1 + 1)·10, or 2·(1·10 + 1)
    assert list(model.first._forward_pre_hooks) == [foreign.id]


@pytest.mark.parametrize(("prepend", "order"), [(False, ["foreign", "ours"]), (True, ["ours", "foreign"])])
@pytest.mark.parametrize("kind", ["full_backward_pre", "full_backward"])
def test_prepend_goes_before_the_backward_hooks_of_others(kind: str, prepend: bool, order: list[str]) -> None:
    model, seen = Chain(), []
    register = (
        model.second.register_full_backward_hook if kind == "full_backward" else model.second.register_full_backward_pre_hook
    )
    foreign = register(lambda *args: seen.append("foreign"))
    with instrument(
        model, [CustomHooks([Hook(lambda *args: seen.append("ours"), kind=kind, modules="second", prepend=prepend)])]
    ):
        pass_through(model)
    assert seen == order
    foreign.remove()


@pytest.mark.parametrize("kind", ["forward_pre", "forward", "full_backward", "output_grad", "input_grad", "node"])
def test_prepended_rules_go_before_the_others_the_last_one_first(kind: str) -> None:
    model, seen = Chain(), []

    def note(what: str, prepend: bool) -> Hook:
        return Hook(lambda *args: seen.append(what), kind=kind, modules="second", prepend=prepend)

    with instrument(model, [CustomHooks([note("a", False), note("b", True), note("c", False), note("d", True)])]):
        pass_through(model)
    assert seen == ["d", "b", "a", "c"]


ARITHMETIC: list[Any] = [
    ("forward_pre", of("first"), "y", lambda change: lambda module, args: (change(args[0]),), 78.0),  # 6·(1·3 + 10)
    ("forward", of("second"), "y", lambda change: lambda module, args, output: change(output), 28.0),  # 6·3 + 10
    ("output_grad", of("second"), "second.weight", lambda change: change, 26.0),  # 2·(1·3 + 10)
    ("input_grad", of("second"), "first.weight", lambda change: change, 19.0),  # 3·3 + 10
    ("node_pre", of("second"), "second.weight", lambda change: lambda outputs: (change(outputs[0]),), 26.0),
    ("node", of("second"), "first.weight", lambda change: lambda inputs, outputs: (change(inputs[0]), inputs[1]), 19.0),
    ("full_backward_pre", of("second"), "second.weight", lambda change: lambda m, outputs: (change(outputs[0]),), 26.0),
    ("full_backward", of("second"), "first.weight", lambda change: lambda m, inputs, outputs: (change(inputs[0]),), 19.0),
    ("param_grad", {"params": "first.weight"}, "first.weight", lambda change: change, 19.0),
]


@pytest.mark.parametrize(("kind", "where", "what", "make", "expected"), ARITHMETIC, ids=[kind for kind, *_ in ARITHMETIC])
def test_hooks_at_one_place_run_in_the_order_written_each_seeing_what_the_former_returned(
    kind: str, where: dict[str, str], what: str, make: Any, expected: float
) -> None:
    model = Chain()
    changes: list[Callable[[Tensor], Tensor]] = [lambda tensor: tensor * 3, lambda tensor: tensor + 10]
    with instrument(model, [CustomHooks([Hook(make(change), kind=kind, **where) for change in changes])]):
        assert pass_through(model)[what] == expected


def test_post_accumulate_hooks_run_in_the_order_written() -> None:
    def change(by: Callable[[Tensor], Tensor]) -> Hook:
        return Hook(lambda p: p.grad.copy_(by(p.grad)) and None, kind="post_accumulate_grad", params="first.weight")

    model = Chain()
    with instrument(model, [CustomHooks([change(lambda grad: grad * 3), change(lambda grad: grad + 10)])]):
        assert pass_through(model)["first.weight"] == 19.0


def test_a_gradient_hook_sees_the_result_that_a_forward_hook_returned() -> None:
    seen: list[float] = []
    rules = [
        Hook(lambda grad: seen.append(grad.item()), kind="output_grad", modules="first"),
        Hook(lambda module, args, output: output * 10, kind="forward", modules="first"),
    ]
    with instrument(model := Chain(), [CustomHooks(rules)]):
        assert pass_through(model)["first.weight"] == 30.0
    assert seen == [3.0]  # the gradient of 10·h, the input of `second`; the gradient of h itself is 30


def test_once_runs_once_at_each_place() -> None:
    seen: list[str] = []
    rule = Hook(lambda name, *args: seen.append(name), kind="forward", modules=["first", "second"], named=True, once=True)
    model = Chain()
    with instrument(model, [CustomHooks([rule])]) as watched:
        for _ in range(3):
            pass_through(model)
            watched.step()
    assert seen == ["first", "second"]


def test_every_n_steps_follows_lightnings_rule() -> None:
    model, steps, seen = Chain(), [0], []
    kinds: list[Any] = [("forward", of("first")), ("full_backward", of("first")), ("param_grad", {"params": "first.weight"})]

    def note(kind: str) -> Callable[..., None]:
        return lambda *args: seen.append((steps[0], kind))

    with instrument(
        model, [CustomHooks([Hook(note(kind), kind=kind, every_n_steps=2, **where) for kind, where in kinds])]
    ) as watched:
        for step in range(5):
            steps[0] = step
            pass_through(model)
            watched.step()
    assert sorted(seen) == [(step, kind) for step in (1, 3) for kind in sorted(kind for kind, _ in kinds)]


@pytest.mark.filterwarnings("ignore:.*matches anything")
def test_a_rule_that_matches_nothing_is_an_error_or_with_strict_false_a_warning() -> None:
    model = Chain()
    with pytest.raises(NoMatchError, match=r"hooks\[1\].modules: 'frist' matches nothing; .*'first'"):
        instrument(
            model, [CustomHooks([Hook(print, kind="forward", modules="*"), Hook(print, kind="forward", modules="frist")])]
        )
    rules = [Hook(print, kind=kind, modules="frist", strict=False) for kind in MODULE_KINDS if kind != "saved_tensors"]
    rules += [Hook((print, print), kind="saved_tensors", modules="frist", strict=False)]
    rules += [Hook(print, kind=kind, params="frist", strict=False) for kind in PARAM_KINDS]
    with pytest.warns(UserWarning, match="'frist' matches nothing"), instrument(model, [CustomHooks(rules)]):
        assert pass_through(model) == PLAIN


def test_types_and_leaves_choose_modules() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(1, 1), nn.ReLU()), nn.Linear(1, 1))

    def names(**where: Any) -> list[str]:
        seen: list[str] = []
        with instrument(
            model, [CustomHooks([Hook(lambda name, *args: seen.append(name), kind="forward", named=True, **where)])]
        ):
            model(torch.ones(1, 1))
        return seen

    assert names(modules="*") == ["0.0", "0.1", "0", "1"]
    assert names(modules="*", select="leaves") == ["0.0", "0.1", "1"]
    assert names(modules="*", types="Linear") == ["0.0", "1"]
    assert names(modules=["*", "!0*"], types=["Linear", "ReLU"]) == ["1"]


def test_types_choose_parameters_by_their_module() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))
    seen: list[str] = []
    rule = Hook(lambda name, grad: seen.append(name), kind="param_grad", params="*", types="LayerNorm", named=True)
    with instrument(model, [CustomHooks([rule])]):
        model(torch.randn(3, 2)).sum().backward()
    assert sorted(seen) == ["1.bias", "1.weight"]


# -- saved tensors ---------------------------------------------------------------------------------------------------------


def test_saved_tensors_are_packed_and_unpacked_around_the_matched_module_alone() -> None:
    model = Chain()
    packed: list[torch.dtype] = []

    def pack(tensor: Tensor) -> Tensor:
        packed.append(tensor.dtype)
        return tensor.double()

    def unpack(tensor: Tensor) -> Tensor:
        assert tensor.dtype is torch.float64
        return tensor.float()

    with instrument(model, [CustomHooks([Hook((pack, unpack), kind="saved_tensors", modules="second")])]):
        assert pass_through(model) == PLAIN
    assert packed == [torch.float32] * 2  # h and the weight; `first` saves x and its weight by itself
    pass_through(model)
    assert len(packed) == 2
    assert_no_hooks(model)


def test_saved_tensors_unpack_after_the_rules_are_gone() -> None:
    model, unpacked = Chain(), []
    rule = Hook((lambda t: t, lambda t: unpacked.append(1) or t), kind="saved_tensors", modules="second")
    with instrument(model, [CustomHooks([rule])]):
        y = model(torch.ones(1, 1))
    y.backward()
    assert model.first.weight.grad == 3 and len(unpacked) == 2


def test_saved_tensors_once_packs_in_one_call() -> None:
    model, packed = Chain(), []
    rule = Hook((lambda t: packed.append(1) or t, lambda t: t), kind="saved_tensors", modules="second", once=True)
    with instrument(model, [CustomHooks([rule])]):
        assert pass_through(model) == PLAIN
        assert pass_through(model) == PLAIN
    assert len(packed) == 2


class Twofold(nn.Module):
    """Calls itself once, then squares."""

    def forward(self, x: Tensor, deep: bool = True) -> Tensor:
        return (self(x, False) if deep else x).square()


def test_saved_tensors_of_a_module_that_calls_itself() -> None:
    model, packed = nn.Sequential(Twofold()), []
    rule = Hook((lambda t: packed.append(t.item()) or t, lambda t: t), kind="saved_tensors", modules="0", once=True)
    x = torch.tensor(3.0, requires_grad=True)
    with instrument(model, [CustomHooks([rule])]):
        model(x).backward()
        model(x)
    assert packed == [3.0, 9.0]  # Both squares are inside the first, outer call, for which the hook is due.
    assert x.grad == 108.0


class Raises(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise ValueError("no result")


def test_saved_tensors_end_where_the_forward_raises() -> None:
    model = nn.Sequential(Raises())
    packed: list[Tensor] = []
    rule = Hook((lambda t: packed.append(t) or t, lambda t: t), kind="saved_tensors", modules="0")
    with instrument(model, [CustomHooks([rule])]):
        with pytest.raises(ValueError, match="no result"):
            model(torch.ones(1))
        leaf = torch.ones(1, requires_grad=True)
        leaf.exp().backward()
    assert packed == []
    assert_no_hooks(model)


def test_saved_tensors_and_named() -> None:
    seen: list[str] = []

    def keep(name: str, tensor: Tensor) -> Tensor:
        seen.append(name)
        return tensor

    model = Chain()
    with instrument(model, [CustomHooks([Hook((keep, keep), kind="saved_tensors", modules=["first", "second"], named=True)])]):
        assert pass_through(model) == PLAIN
    assert sorted(set(seen)) == ["first", "second"]


# -- parameters that freeze and thaw ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", PARAM_KINDS)
def test_a_frozen_parameter_is_hooked_when_it_is_unfrozen(kind: str) -> None:
    model, seen = Chain(), []
    model.first.weight.requires_grad_(False)
    model.codes = nn.Parameter(torch.ones(2, dtype=torch.int8), requires_grad=False)  # never has a gradient
    rules = [Hook(lambda tensor: seen.append(tensor.item()), kind=kind, params=["first.weight", "codes"])]
    with instrument(model, [CustomHooks(rules)]) as watched:
        pass_through(model)
        watched.step()
        assert seen == [] and not model.first.weight.requires_grad
        model.first.weight.requires_grad_(True)
        pass_through(model)
        watched.step()
        pass_through(model)
    expected = 3.0 if kind == "param_grad" else 2.0  # the gradient, or the parameter
    assert seen == [expected] * 2
    assert_no_hooks(model)


# -- optimizers ------------------------------------------------------------------------------------------------------------


class Sgd(torch.optim.Optimizer):
    """p -= times · gradient."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None, *, times: float = 1.0) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(times * parameter.grad)


def test_the_hooks_around_an_optimizers_step() -> None:
    model = Chain()
    optimizer = Sgd(model.parameters())
    seen: list[Any] = []

    def before(opt: Any, args: Any, kwargs: Any) -> Any:
        seen.append(("pre", opt is optimizer, kwargs, model.first.weight.item()))
        return args, {"times": 2.0}

    def after(opt: Any, args: Any, kwargs: Any) -> None:
        seen.append(("post", opt is optimizer, kwargs, model.first.weight.item()))

    rules = [Hook(before, kind="optimizer_step_pre"), Hook(after, kind="optimizer_step_post")]
    with instrument(model, [CustomHooks(rules)], optimizer=optimizer):
        pass_through(model)
        optimizer.step(times=7.0)
    # 2 - 2·3
    assert seen == [("pre", True, {"times": 7.0}, 2.0), ("post", True, {"times": 2.0}, -4.0)]
    assert not optimizer._optimizer_step_pre_hooks and not optimizer._optimizer_step_post_hooks
    optimizer.step()
    assert len(seen) == 2


def test_optimizer_hooks_run_at_their_steps_and_once() -> None:
    model, seen = Chain(), []
    optimizer = Sgd(model.parameters())
    steps = [0]

    def note(what: str) -> Callable[..., None]:
        return lambda *args: seen.append((steps[0], what))

    rules = [
        Hook(note("every"), kind="optimizer_step_post"),
        Hook(note("second"), kind="optimizer_step_pre", every_n_steps=2),
        Hook(note("second, after"), kind="optimizer_step_post", every_n_steps=2),
        Hook(note("once"), kind="optimizer_step_pre", once=True),
    ]
    with instrument(model, [CustomHooks(rules)], optimizer=optimizer):
        for step in range(4):
            steps[0] = step
            pass_through(model)
            optimizer.step()
    assert seen == [
        *[(0, "once"), (0, "every")],
        *[(1, "second"), (1, "every"), (1, "second, after")],
        (2, "every"),
        *[(3, "second"), (3, "every"), (3, "second, after")],
    ]


def test_an_optimizer_hook_alone_keeps_its_schedule() -> None:
    model, seen = Chain(), []
    optimizer = Sgd(model.parameters())
    rule = Hook(lambda name, *args: seen.append((name, step)), kind="optimizer_step_pre", every_n_steps=2, named=True)
    with instrument(model, [CustomHooks([rule])], optimizer=optimizer):
        for step in range(4):  # noqa: B007
            pass_through(model)
            optimizer.step()
    assert seen == [("hooks[0]", 1), ("hooks[0]", 3)]


def test_every_optimizer_gets_the_hooks() -> None:
    model, seen = Chain(), []
    optimizers = [Sgd(model.first.parameters()), Sgd(model.second.parameters())]

    def note(what: str) -> Callable[..., None]:
        return lambda optimizer, args, kwargs: seen.append((what, optimizers.index(optimizer)))

    rules = [Hook(note(kind), kind=kind) for kind in OPTIMIZER_KINDS]
    with instrument(model, [CustomHooks(rules)], optimizer=optimizers):
        for _ in range(2):
            pass_through(model)
            for optimizer in optimizers:
                optimizer.step()
    one_step = [(kind, i) for i in range(2) for kind in OPTIMIZER_KINDS]
    assert seen == one_step * 2
    assert not any(o._optimizer_step_pre_hooks or o._optimizer_step_post_hooks for o in optimizers)


# -- none is left ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["output_grad", "input_grad", "node_pre", "node", "full_backward_pre", "full_backward"])
def test_a_backward_after_the_with_is_not_hooked(kind: str) -> None:
    model, seen = Chain(), []
    with instrument(model, [CustomHooks([Hook(lambda *args: seen.append(kind), kind=kind, modules="*")])]):
        y = model(torch.ones(1, 1, requires_grad=True))
    y.backward()
    assert seen == []
    assert (model.first.weight.grad, model.second.weight.grad) == (3, 2)


@pytest.mark.parametrize(("kind", "where"), [(kind, where) for kind, where, _ in SEEN], ids=[kind for kind, *_ in SEEN])
def test_no_hook_is_left_after_an_exception_in_one(kind: str, where: dict[str, str]) -> None:
    def fail(*args: Any) -> None:
        raise ValueError("mine")

    model = Chain()
    with pytest.raises(ValueError, match="mine") as raised, instrument(model, [CustomHooks([Hook(fail, kind=kind, **where)])]):
        pass_through(model)
    name = where.get("modules") or where["params"]
    assert [note.replace(fail.__qualname__, "fail") for note in raised.value.__notes__] == [
        f"raised in hooks[0] (fail, {kind}) at {name}"
    ]
    assert_no_hooks(model)
    assert pass_through(model) == PLAIN


@pytest.mark.parametrize("copier", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))], ids=["copy", "pickle"])
def test_a_copy_of_a_hooked_model_is_not_hooked(copier: Callable[[nn.Module], nn.Module]) -> None:
    model, seen = Chain(), []

    def look(*args: Any) -> None:
        seen.append(args)

    rules = [Hook(look, kind=kind, **where) for kind, where, _ in SEEN]
    rules += [Hook(look, kind="forward", modules="*", prepend=True), Hook(look, kind="forward_pre", modules="*", prepend=True)]
    rules += [Hook((lambda t: seen.append(t) or t, lambda t: t), kind="saved_tensors", modules="*")]
    with instrument(model, [CustomHooks(rules)]):
        twin = copier(model)
        assert pass_through(twin) == PLAIN
        assert seen == []
        assert pass_through(model) == PLAIN
        assert seen


def test_a_compiled_module_is_refused_with_an_alternative() -> None:
    model = nn.Sequential(torch.compile(Chain()), nn.Linear(1, 1))
    with pytest.raises(UnsupportedError, match=r"hooks\[0\].modules"):
        instrument(model, [CustomHooks([Hook(print, kind="forward", modules="0.first")])])
    assert_no_hooks(model)


def test_saved_tensors_under_activation_checkpointing() -> None:
    class Checkpointed(Chain):
        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = checkpoint(super().forward, x, use_reentrant=False)
            return y

    packed: list[int] = []
    rule = Hook((lambda t: packed.append(1) or t, lambda t: t), kind="saved_tensors", modules="second")
    with instrument(model := Checkpointed(), [CustomHooks([rule])]):
        assert pass_through(model) == PLAIN
    assert packed


def test_hooks_under_activation_checkpointing_change_the_recomputation_too() -> None:
    class Checkpointed(Chain):
        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = checkpoint(super().forward, x, use_reentrant=False)
            return y

    model = Checkpointed()
    with instrument(model, [CustomHooks([Hook(lambda module, args, output: output * 10, kind="forward", modules="first")])]):
        assert pass_through(model) == {"y": 60.0, "x": 60.0, "first.weight": 30.0, "second.weight": 20.0}


def test_hooks_of_a_rule_that_raises_when_it_is_resolved_are_not_there() -> None:
    model = Chain()
    with pytest.raises(NoMatchError):
        instrument(
            model, [CustomHooks([Hook(print, kind="forward", modules="first"), Hook(print, kind="param_grad", params="third")])]
        )
    assert_no_hooks(model)
