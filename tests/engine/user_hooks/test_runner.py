"""What a user's hook may not do. The message names the rule, the hook, its kind, the target and the fault."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_hooks import CustomHooks, Hook, HookError, HookPoint, RuleError, assert_no_hooks, instrument
from tests.engine.user_hooks import tutorial_calls
from tests.engine.user_hooks.modules import Squares


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    tutorial_calls.seen.clear()
    yield
    tutorial_calls.seen.clear()


class Model(nn.Module):
    """Two layers, 2 to 2 features, the batch is three rows."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.mark, self.second = nn.Linear(2, 2), HookPoint(), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(self.mark(self.first(x)))
        return y


def train(rules: Any, model: nn.Module | None = None) -> nn.Module:
    model = model or Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    try:
        with instrument(model, [CustomHooks(rules)], optimizer=optimizer):
            # The gradient of a sum is an expanded scalar, which cannot be changed in place.
            (model(torch.ones(3, 2, requires_grad=True)) * torch.ones(3, 2)).sum().backward()
            optimizer.step()
    finally:
        assert_no_hooks(model)
        assert not optimizer._optimizer_step_pre_hooks and not optimizer._optimizer_step_post_hooks
    return model


def message(call: Callable[..., Any], kind: str, **where: Any) -> str:
    """The message of the error, without the long name of the lambda."""
    with pytest.raises(HookError) as raised:
        train([Hook(tutorial_calls.see_both, kind="forward", modules="mark"), Hook(call, kind=kind, **where)])
    return str(raised.value).replace(call.__qualname__, "call")


# For each kind: the target of a rule, and a function that makes a hook which replaces a tensor by the result of `make`.
GIVEN: dict[str, tuple[dict[str, str], Callable[[Callable[[Tensor], Any]], Callable[..., Any]]]] = {
    "forward_pre": ({"modules": "second"}, lambda make: lambda module, args: (make(args[0]),)),
    "forward": ({"modules": "second"}, lambda make: lambda module, args, output: make(output)),
    "full_backward_pre": ({"modules": "second"}, lambda make: lambda module, outputs: (make(outputs[0]),)),
    "full_backward": ({"modules": "second"}, lambda make: lambda module, inputs, outputs: (make(inputs[0]),)),
    "output_grad": ({"modules": "second"}, lambda make: make),
    "input_grad": ({"modules": "second"}, lambda make: make),
    "node_pre": ({"modules": "mark"}, lambda make: lambda outputs: (make(outputs[0]),)),
    "node": ({"modules": "mark"}, lambda make: lambda inputs, outputs: (make(inputs[0]), *inputs[1:])),
    "param_grad": ({"params": "second.weight"}, lambda make: make),
}


def target_of(kind: str) -> str:
    where = GIVEN[kind][0]
    return where.get("modules") or where["params"]


@pytest.mark.parametrize("kind", GIVEN)
@pytest.mark.parametrize(
    ("make", "wrong"),
    [
        (lambda tensor: tensor.new_zeros(5, 7), r"of shape \(5, 7\) instead of \(\d,( \d)?\)"),
        (lambda tensor: tensor.double(), "of dtype torch.float64 instead of torch.float32"),
        (lambda tensor: tensor.to("meta"), "of device meta instead of cpu"),
        (lambda tensor: tensor.to_sparse(), "of layout torch.sparse_coo instead of torch.strided"),
    ],
    ids=["shape", "dtype", "device", "layout"],
)
def test_a_result_that_cannot_take_the_place_is_refused(kind: str, make: Callable[[Tensor], Tensor], wrong: str) -> None:
    where, wrap = GIVEN[kind]
    text = message(wrap(make), kind, **where)
    hint = "; set checked=False if this is intended" if kind in ("forward_pre", "forward") else ""
    which = "tensor 0" if kind == "node" else "a tensor"  # the node of a linear layer has three inputs
    assert re.fullmatch(rf"hooks\[1\] \(call, {kind}\) at {target_of(kind)} returned {which} {wrong}{hint}", text), text


@pytest.mark.parametrize("kind", GIVEN)
@pytest.mark.parametrize(("make", "number"), [(lambda t: (t, t), 2), (lambda t: 3.0, 0), (lambda t: {}, 0)])
def test_a_result_of_another_number_of_tensors_is_refused(kind: str, make: Callable[[Tensor], Any], number: int) -> None:
    where, wrap = GIVEN[kind]
    before = 3 if kind == "node" else 1
    text = message(wrap(make), kind, **where)
    assert text.startswith(
        f"hooks[1] (call, {kind}) at {target_of(kind)} returned {number + before - 1} tensors instead of {before}"
    )


@pytest.mark.parametrize("kind", GIVEN)
def test_a_change_in_place_is_refused(kind: str) -> None:
    where, wrap = GIVEN[kind]

    def change(tensor: Tensor) -> Tensor:
        with torch.no_grad():
            return tensor.mul_(2)

    shape = r"\(3, 2\)|\(2, 2\)|\(2,\)"
    assert re.fullmatch(
        rf"hooks\[1\] \(call, {kind}\) at {target_of(kind)} changed a tensor of shape ({shape}) in place. Others may share its "
        "memory and would silently see the change; return a new tensor instead, or set checked=False if this is intended",
        message(wrap(change), kind, **where),
    )


def test_a_forward_hook_may_not_change_the_arguments_in_place_either() -> None:
    def change(module: nn.Module, args: tuple[Tensor], output: Tensor) -> None:
        with torch.no_grad():
            args[0].zero_()

    assert "(call, forward) at second changed a tensor of shape (3, 2) in place" in message(change, "forward", modules="second")


@pytest.mark.parametrize("kind", [kind for kind in GIVEN if "node" not in kind])
def test_a_change_in_place_that_is_meant(kind: str) -> None:
    where, wrap = GIVEN[kind]

    def change(tensor: Tensor) -> None:
        with torch.no_grad():
            tensor.mul_(1)

    rule = Hook(wrap(lambda tensor: change(tensor) or tensor), kind=kind, checked=False, **where)
    train([rule])


class Narrow(nn.Module):
    """Returns the sum of a tensor of any shape and dtype."""

    def forward(self, x: Tensor) -> Tensor:
        return x.double().sum()


@pytest.mark.parametrize(("kind", "module"), [("forward", "0"), ("forward_pre", "1")])
def test_unchecked_another_shape_and_dtype_go_through(kind: str, module: str) -> None:
    model = nn.Sequential(HookPoint(), Narrow())
    other = torch.full((7,), 2, dtype=torch.float16)
    rule = Hook(lambda *args: other, kind=kind, modules=module, checked=False)
    with instrument(model, [CustomHooks([rule])]):
        assert model(torch.ones(2)).item() == 14.0


def test_unchecked_another_nest_goes_through() -> None:
    model = nn.Sequential(HookPoint())
    rule = Hook(lambda module, args, output: {"seen": output, "twice": output * 2}, kind="forward", modules="0", checked=False)
    with instrument(model, [CustomHooks([rule])]):
        assert model(torch.ones(1)) == {"seen": 1, "twice": 2}


def test_a_gradient_that_there_is_not_is_not_checked() -> None:
    model, x = Squares(), torch.tensor([3.0], requires_grad=True)

    def change(module: nn.Module, grad_input: Any, grad_output: Any) -> Any:
        assert grad_input[1] is None  # an exponent has no gradient
        return grad_input[0] + 1, None

    with instrument(model, [CustomHooks([Hook(change, kind="full_backward", modules="power")])]):
        model(x).sum().backward()
    assert x.grad is not None and x.grad.item() == 7.0


@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize(
    ("kind", "where", "place"),
    [("post_accumulate_grad", {"params": "second.bias"}, "second.bias"), ("optimizer_step_post", {}, "hooks[1]")],
)
def test_a_result_that_nobody_uses_is_refused(kind: str, where: dict[str, str], place: str, checked: bool) -> None:
    assert message(lambda *args: torch.ones(1), kind, checked=checked, **where) == (
        f"hooks[1] (call, {kind}) at {place} returned Tensor; what a hook of this kind returns is not used"
    )


@pytest.mark.parametrize(
    ("kind", "where"),
    [
        *((kind, where) for kind, (where, _) in GIVEN.items()),
        ("post_accumulate_grad", {"params": "second.bias"}),
        ("optimizer_step_pre", {}),
        ("optimizer_step_post", {}),
    ],
)
def test_stop_iteration_becomes_an_error(kind: str, where: dict[str, str]) -> None:
    def call(*args: Any) -> None:
        next(iter(()))

    place = where.get("modules") or where.get("params") or "hooks[1]"
    assert message(call, kind, **where) == f"hooks[1] (call, {kind}) at {place} raised StopIteration: "


@pytest.mark.parametrize("which", [0, 1])
def test_stop_iteration_in_a_pair_becomes_an_error(which: int) -> None:
    def stop(tensor: Tensor) -> Tensor:
        raise StopIteration("no more")

    pair: list[Any] = [lambda tensor: tensor, lambda tensor: tensor]
    pair[which] = stop
    with pytest.raises(HookError, match=r"hooks\[0\] .*saved_tensors\) at second raised StopIteration: no more"):
        train([Hook(tuple(pair), kind="saved_tensors", modules="second")])


class Mine(Exception):
    """A user's own."""


@pytest.mark.parametrize(
    ("kind", "where"), [*((kind, where) for kind, (where, _) in GIVEN.items()), ("optimizer_step_pre", {})]
)
def test_a_users_own_exception_stays_as_it_is_with_a_note(kind: str, where: dict[str, str]) -> None:
    error = Mine("wrong")

    def call(*args: Any) -> None:
        raise error

    with pytest.raises(Mine) as raised:
        train([Hook(call, kind=kind, **where)])
    place = where.get("modules") or where.get("params") or "hooks[0]"
    assert raised.value is error
    assert [note.replace(call.__qualname__, "call") for note in error.__notes__] == [
        f"raised in hooks[0] (call, {kind}) at {place}"
    ]


def test_keyboard_interrupt_passes() -> None:
    def call(*args: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train([Hook(call, kind="forward", modules="second")])


# -- what may be called ----------------------------------------------------------------------------------------------------


def test_an_import_path_is_named_as_it_was_written() -> None:
    path = "tests.engine.user_hooks.test_runner.too_short"
    with pytest.raises(
        HookError, match=rf"hooks\[0\] \({re.escape(path)}, forward\) at second returned a tensor of shape \(2, 2\)"
    ):
        train([{"call": path, "kind": "forward", "modules": "second"}])


def too_short(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    return output[:2]


def test_an_import_path_is_called() -> None:
    train([{"call": "tests.engine.user_hooks.tutorial_calls.look", "kind": "output_grad", "modules": "second"}])
    assert [seen.tolist() for seen in tutorial_calls.seen] == [[[1.0, 1.0]] * 3]


class Times:
    """A hook that is an object, created from a class path and arguments."""

    def __init__(self, factor: float = 2.0, plus: float = 0.0) -> None:
        self.factor, self.plus = factor, plus

    def __call__(self, grad: Tensor) -> Tensor:
        return grad * self.factor + self.plus

    def __repr__(self) -> str:
        return f"Times({self.factor})"


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ({"class_path": "tests.engine.user_hooks.test_runner.Times", "init_args": {"factor": 3.0, "plus": 1.0}}, 10.0),
        ({"class_path": "tests.engine.user_hooks.test_runner.Times"}, 6.0),
        ({"_target_": "tests.engine.user_hooks.test_runner.Times", "factor": 4.0}, 12.0),
        (Times(5.0), 15.0),
    ],
)
def test_a_class_path_with_arguments_is_made_and_called(call: Any, expected: float) -> None:
    model = train([{"call": call, "kind": "param_grad", "params": "second.bias"}])
    assert model.get_parameter("second.bias").grad.tolist() == [expected] * 2  # type: ignore[union-attr]


def test_an_object_is_named_as_it_shows_itself() -> None:
    class Wrong(Times):
        def __call__(self, grad: Tensor) -> Tensor:
            return grad[:1]

    with pytest.raises(
        HookError, match=r"hooks\[0\] \(Times\(2.0\), param_grad\) at second.bias returned a tensor of shape \(1,\)"
    ):
        train([Hook(Wrong(), kind="param_grad", params="second.bias")])


@pytest.mark.parametrize(
    ("call", "wrong"),
    [
        ("tests.engine.user_hooks.test_runner.nowhere", "hooks[0].call: "),
        (
            "tests.engine.user_hooks.test_runner.Times",
            "hooks[0].call must be a function, an object that can be called, or the import",
        ),
        ({"class_path": "tests.engine.user_hooks.test_runner.Times", "init_args": {"facto": 1}}, "hooks[0].call: "),
        ({"init_args": {}}, "hooks[0].call: a mapping needs class_path (and init_args), got keys ['init_args']"),
        (3, "hooks[0].call must be a function, an object that can be called, or the import path of one, got 3"),
    ],
)
def test_what_cannot_be_called_is_refused_when_the_rule_is_written(call: Any, wrong: str) -> None:
    with pytest.raises(RuleError) as raised:
        instrument(Model(), [CustomHooks([{"call": call, "kind": "param_grad", "params": "*"}])])
    assert str(raised.value).startswith(wrong)
