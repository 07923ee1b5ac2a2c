"""Facts of a model and its optimizers: names, roles, and what is noticed of a change."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.utils.prune import l1_unstructured

from lightning_hooks import RuleError, StatsMonitor, Watch, instrument
from lightning_hooks.engine.participants.facts import ModelFacts, role_of, structure_of


@pytest.mark.parametrize(
    ("module", "role"),
    [
        (nn.Linear(1, 1), "linear"),
        (nn.Conv2d(1, 1, 1), "convolution"),
        (nn.BatchNorm1d(1), "norm"),
        (nn.LayerNorm(1), "norm"),
        (nn.utils.parametrizations.weight_norm(nn.Linear(1, 1)), "linear"),
        (nn.utils.parametrizations.weight_norm(nn.Linear(1, 1)).parametrizations.weight[0], "other"),
        (nn.Embedding(2, 1), "embedding"),
        (nn.Dropout(), "dropout"),
        (nn.LSTM(1, 1), "recurrent"),
        (nn.MultiheadAttention(2, 1), "attention"),
        (nn.Softmax(), "activation"),
        (nn.CrossEntropyLoss(), "loss"),
        (nn.Sequential(nn.ReLU()), "container"),
        (nn.Identity(), "other"),
        (type("LlamaRMSNorm", (nn.Module,), {})(), "norm"),
        (type("BertSelfAttention", (nn.Module,), {})(), "attention"),
        (type("NewGELUActivation", (nn.Module,), {})(), "activation"),
    ],
)
def test_the_role_of_a_class(module: nn.Module, role: str) -> None:
    assert role_of(module) == role


def test_a_tied_parameter_is_one_parameter_with_two_names() -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[1].weight = model[0].weight
    (parameter,) = structure_of(model).parameters
    assert (parameter.name, parameter.module, parameter.others) == ("0.weight", "0", ("1.weight",))
    assert (parameter.shape, parameter.dtype) == ((2, 2), "float32")


def test_a_parameter_that_was_replaced_is_found_when_the_optimizer_gets_it() -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    facts = ModelFacts(model, lambda: [optimizer])
    first = facts.of_step()
    model[0].weight = nn.Parameter(torch.ones(2, 2))
    optimizer.param_groups[0]["params"] = [model[0].weight]
    second = facts.of_step()
    assert second is first and second.optimizers[0].groups[0].strangers == 0
    optimizer.param_groups[0]["lr"] = 0.2
    assert facts.of_step().optimizers[0].groups[0].lr == 0.2


def prune(layer: nn.Module) -> None:
    l1_unstructured(layer, "weight", 0.5)


def parametrize(layer: nn.Module) -> None:
    nn.utils.parametrize.register_parametrization(layer, "weight", nn.Identity())


@pytest.mark.parametrize("change", [prune, parametrize])
def test_a_parameter_that_moves_to_another_name_keeps_its_first_one(change: Callable[[nn.Module], None]) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    facts = ModelFacts(model, lambda: [optimizer])
    first = facts.of_step()
    for layer in model:
        change(layer)
    facts.forget()
    second = facts.of_step()
    assert second.optimizers == first.optimizers and second.frozen == first.frozen == ("1.weight",)


def test_modules_in_evaluation_mode_and_frozen_parameters_are_named() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    model[1].eval()
    model[0].bias.requires_grad_(False)
    facts = ModelFacts(model, list).of_step()
    assert (facts.evaluating, facts.frozen, facts.optimizers) == (("1",), ("0.bias",), ())


@pytest.mark.parametrize(
    ("module", "rate"),
    [
        (nn.Dropout2d(0.3), 0.3),
        (nn.MultiheadAttention(2, 1, dropout=0.2), 0.2),
        (nn.LSTM(1, 1, num_layers=2, dropout=0.4), 0.4),
        (nn.GRU(1, 1), None),
        (nn.Linear(1, 1), None),
    ],
)
def test_the_share_of_elements_that_a_module_drops(module: nn.Module, rate: float | None) -> None:
    assert structure_of(nn.Sequential(module)).modules[0].drop_rate == rate


def test_a_frozen_parameter_is_named_at_the_step_in_which_code_wrote_to_it() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].requires_grad_(False)
    facts = ModelFacts(model, list)
    assert facts.of_step().written == () and facts.of_step().written == ()
    with torch.no_grad():
        model[0].weight.mul_(0.5)
        model[1].weight.mul_(0.5)
    assert facts.of_step().written == ("0.weight",)
    assert facts.of_step().written == ()
    model[0].weight = nn.Parameter(torch.ones(2, 2), requires_grad=False)
    facts.forget()
    assert facts.of_step().written == (), "another parameter is not a write"


def test_a_parameter_that_was_made_in_inference_mode_has_no_count_of_writes() -> None:
    with torch.inference_mode():
        model = nn.Linear(2, 2).requires_grad_(False)
    facts = ModelFacts(model, list)
    assert [facts.of_step().frozen, facts.of_step().written] == [("weight", "bias"), ()]


def test_the_loss_of_a_plain_loop() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with instrument(model, [StatsMonitor([Watch(params="*", stats="norm")])], optimizer=optimizer) as watched:
        for value in (1.0, 2.0):
            loss = model(torch.ones(1, 2)).sum() * 0 + value
            watched.note_loss(loss)
            loss.backward()
        optimizer.step()
        assert watched.view.summaries["run/loss"] == 1.5
        (model(torch.ones(1, 2)).sum() * 0 + 4).backward()
        optimizer.step()
        assert watched.latest["run/loss"] == 4.0
        with pytest.raises(RuleError, match=r"^note_loss: loss must be a tensor, got 1\.0$"):
            watched.note_loss(1.0)  # type: ignore[arg-type]
    assert watched.view.facts is not None and watched.view.facts.optimizers[0].groups[0].params == ("weight", "bias")
    with pytest.raises(RuleError, match=r"note_loss\(\) was called after the with block"):
        watched.note_loss(torch.ones(()))


def test_a_head_that_is_replaced_within_an_epoch_is_noticed_without_a_new_optimizer() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    facts = ModelFacts(model, lambda: [optimizer])
    assert facts.of_step().optimizers[0].groups[0].strangers == 0
    model[1] = nn.Linear(2, 1)
    seen = [facts.of_step().optimizers[0].groups[0] for _ in range(4)][-1]
    assert (seen.strangers, seen.params) == (2, ("0.weight", "0.bias"))
