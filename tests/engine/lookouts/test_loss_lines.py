"""A finding about the loss names the line of the user's code at which the loss is computed, or its backward pass begins."""

import inspect
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from lightning_hooks.health.finding import Cause
from lightning_hooks.health.text import as_text, block_of_cause, block_of_finding
from tests.callbacks.models import Net
from tests.engine.lookouts.loops import in_loop, in_trainer

HERE = Path(__file__).resolve().relative_to(Path.cwd())


def line_of(function, text):
    """Where a function has a text, as a finding names it."""
    lines, first = inspect.getsourcelines(function)
    number = next(first + i for i, line in enumerate(lines) if text in line)
    return f"{HERE}:{number} in {function.__name__}"


def by_function(output, target):
    return functional.mse_loss(output.squeeze(1), target)


def by_module(output, target):
    return 0.5 * nn.MSELoss()(output.squeeze(1), target)


def by_hand(output, target):
    return (output.squeeze(1) - target).square().mean()


def by_two(output, target):
    return functional.mse_loss(output.squeeze(1), target) + functional.l1_loss(output.squeeze(1), target)


def train(loss_of, rule="LossConstant", note=False):
    """The finding on a loss that does not move."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-9)
    batch, target = torch.randn(16, 4), torch.randn(16)

    def step_of(watched, step):
        with torch.no_grad():
            functional.l1_loss(model(batch).squeeze(1), target)
        optimizer.zero_grad()
        loss = loss_of(model(batch), target)
        if note:
            watched.note_loss(loss)
        loss.backward()
        optimizer.step()

    return in_loop(model, optimizer, step_of, [rule], 120)[rule], step_of


@pytest.mark.parametrize("loss_of", [by_function, by_module])
def test_the_call_of_a_loss_of_torch_is_named(loss_of):
    finding, _ = train(loss_of)
    assert finding.line == f"the loss is computed at {line_of(loss_of, 'return')}"
    assert finding.line in block_of_finding(finding).why


def test_two_calls_on_one_line_are_named_once():
    assert train(by_two)[0].line == f"the loss is computed at {line_of(by_two, 'return')}"


@pytest.mark.parametrize("note", [False, True])
def test_in_a_loop_the_backward_pass_of_another_loss_is_named(note):
    finding, step_of = train(by_hand, note=note)
    text = "note_loss" if note else "loss.backward()"
    assert finding.line == f"the backward pass of the loss begins at {line_of(step_of, text)}"


class Fitted(Net):
    """Has a loss of torch, or one of its own."""

    def __init__(self, is_own):
        super().__init__(lambda parameters: torch.optim.SGD(parameters, 1e-9), dropout=0.0)
        self.is_own = is_own

    def training_step(self, batch, batch_idx):
        output = self(batch[0])
        if self.is_own:
            return (output - batch[1]).square().mean()
        return functional.mse_loss(output, batch[1])


@pytest.mark.parametrize("is_own", [False, True])
def test_in_a_fit_the_call_is_named_and_nothing_where_it_is_not_known(tmp_path, is_own):
    torch.manual_seed(0)
    batch = torch.randn(8, 6), torch.randn(8, 3)
    finding = in_trainer(tmp_path, Fitted(is_own), [batch] * 100, ["LossConstant"], max_steps=100)["LossConstant"]
    where = line_of(Fitted.training_step, "functional.mse_loss")
    assert finding.line == ("" if is_own else f"the loss is computed at {where}")


@pytest.mark.filterwarnings("ignore:Using a target size")
def test_a_nan_of_the_loss_and_a_wrong_shape_have_the_line_too():
    def infinite(output, target):
        return functional.mse_loss(output.squeeze(1), target) * float("inf")

    def unsqueezed(output, target):
        return functional.mse_loss(output, target)

    assert train(infinite, "NonFinite")[0].line == f"the loss is computed at {line_of(infinite, 'return')}"
    assert train(unsqueezed, "LabelsFitHead")[0].line == f"the loss is computed at {line_of(unsqueezed, 'return')}"


def test_a_finding_on_parameters_has_no_line():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def loop(watched, step):
        optimizer.zero_grad()
        functional.mse_loss(model(torch.ones(4, 4)), torch.ones(4, 1)).backward()
        model.weight.grad.fill_(float("nan"))
        optimizer.step()

    finding = in_loop(model, optimizer, loop, ["NonFinite"], 1)["NonFinite"]
    assert (finding.rows, finding.line) == (("weight",), "")


def test_the_block_of_a_cause_names_the_line_once():
    finding, _ = train(by_function)
    cause = Cause("LossAtChance", "It is.", (finding.fingerprint,), numbers=(finding.number,))
    assert as_text([block_of_cause(cause, [finding])], 200).count(finding.line) == 1
