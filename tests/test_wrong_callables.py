"""A function of a user's that takes other arguments than it is given is refused when the rule is made, or at fit start."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn
from torchmetrics import MeanMetric, MeanSquaredError, Metric

import lightning_hooks
from lightning_hooks import Hook, RuleError, StatsMonitor, Watch
from lightning_hooks.rules.tensors import MODULE_KINDS, OPTIMIZER_KINDS, PARAM_KINDS
from lightning_hooks.transforms import Function, Mask, ReverseGradient, Scale, ScaleBySchedule, When


def nothing() -> None:
    """Takes no argument."""


def two(first: Any, second: Any) -> Any:
    return first


def three(first: Any, second: Any, third: Any) -> Any:
    return first


class NeedsMore(MeanMetric):
    def __init__(self, classes: int, **options: Any) -> None:
        super().__init__(**options)


def start(stat: Any) -> None:
    """What a fit does first."""
    model = LightningModule()
    model.layer = nn.Linear(2, 2)
    StatsMonitor([Watch(params="*", stats=[stat])]).match(model)


MADE: list[tuple[Any, str]] = [
    (lambda: Function(nothing), "Function.call: "),
    (lambda: Function(two), "cannot be called with (tensor); it takes (first: 'Any', second: 'Any') -> 'Any'"),
    (lambda: Function(torch.add), "Function.call: <built-in method add of type object"),
    (lambda: Function(nn.Bilinear(2, 2, 2)), "cannot be called with (tensor); it takes (input1: "),
    (lambda: ScaleBySchedule(call=nothing), "ScaleBySchedule.call: "),
    (lambda: ReverseGradient(two), "cannot be called with (step)"),
    (lambda: When(nothing, transform=Scale(1.0)), "When.condition: "),
    (lambda: Mask(nothing), "Mask.mask: "),
    (lambda: Mask("tests.test_wrong_callables.three"), "cannot be called with (name, tensor)"),
    (lambda: start(nothing), "watch[0].stats[0]: "),
    (lambda: start(torch.add), "watch[0].stats[0]: <built-in method add of type object"),
    (lambda: start(NeedsMore), "watch[0].stats[0]: NeedsMore cannot be made with (sync_on_compute=…): missing a required"),
    (lambda: start(MeanSquaredError), "watch[0].stats[0]: MeanSquaredError.update: <function MeanSquaredError.update at"),
    (lambda: Hook(nothing, kind="forward", modules="*"), "call: <function nothing at"),
    (
        lambda: Hook(three, kind="forward", modules="*", with_kwargs=True),
        "cannot be called with (module, args, kwargs, output)",
    ),
    (lambda: Hook(three, kind="forward", modules="*", named=True), "cannot be called with (name, module, args, output)"),
    (lambda: Hook((two, two), kind="saved_tensors", modules="*"), "call[0]: <function two at"),
]


@pytest.mark.parametrize(("make", "message"), MADE, ids=[message for _, message in MADE])
def test_another_signature_is_refused_with_the_option(make: Any, message: str) -> None:
    with pytest.raises(RuleError) as caught:
        make()
    assert message in str(caught.value)
    assert "cannot be " in str(caught.value)


@pytest.mark.parametrize("method", ["start", "consume", "close"])
def test_a_consumer_whose_method_takes_other_arguments_is_refused(method: str) -> None:
    class Reads(lightning_hooks.StepConsumer):
        pass

    setattr(Reads, method, lambda self: None)
    with pytest.raises(RuleError, match=rf"^consumers\[0\]\.{method}: .* cannot be called with"):
        StatsMonitor(consumers=[Reads()])


GOOD: list[Any] = [
    torch.tanh,
    torch.Tensor.tanh,
    torch.nn.functional.gelu,
    torch.nn.functional.relu,
    torch.linalg.inv,  # of square matrices only
    torch.fft.fft,
    nn.Linear(7, 7),  # not for the tensor of a check
    lambda *tensors: tensors[0],
    lambda tensor, scale=1.0: tensor,
]


@pytest.mark.parametrize("call", GOOD)
def test_whatever_takes_one_tensor_is_accepted(call: Any) -> None:
    drawn = torch.random.get_rng_state()
    Function(call)
    assert torch.equal(torch.random.get_rng_state(), drawn)


@pytest.mark.parametrize("stat", [torch.sum, lambda tensor: tensor.sum(), MeanMetric, Metric])
def test_statistics_of_one_tensor_are_accepted(stat: Any) -> None:
    start(stat)


@pytest.mark.parametrize("kind", [*MODULE_KINDS, *PARAM_KINDS, *OPTIMIZER_KINDS])
def test_every_kind_of_hook_names_what_it_is_called_with(kind: str) -> None:
    target = {"modules": "*"} if kind in MODULE_KINDS else {"params": "*"} if kind in PARAM_KINDS else {}
    call: Any = (nothing, nothing) if kind == "saved_tensors" else nothing
    with pytest.raises(RuleError, match=r"call.*cannot be called with \(\w+.*; it takes \(\) -> 'None'"):
        Hook(call, kind=kind, **target)  # type: ignore[arg-type]
    anything: Any = lambda *args: None  # noqa: E731
    Hook((anything, anything) if kind == "saved_tensors" else anything, kind=kind, **target)  # type: ignore[arg-type]
