"""A lookout hears in which mode dropouts and batch norms evaluate, and dropouts by function that are not told the mode."""

import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import update_bn
from torch.utils.checkpoint import checkpoint

from lightning_hooks.hooks.listening import Listening
from tests.callbacks.models import Net
from tests.engine.lookouts.loops import in_loop, in_trainer

RULES = ["EvaluationInTrainingMode", "DropoutInEvaluation"]
BEFORE = F.dropout, F.batch_norm


class Model(nn.Module):
    """A batch norm and a dropout, and one by a function that a test gives."""

    def __init__(self):
        super().__init__()
        self.inner, self.norm, self.drop = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.2)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(F.dropout(self.drop(self.norm(self.inner(x))), 0.0, self.training))


FILE = "tests/engine/lookouts/test_evaluations.py"


def told(model, evaluate, every=10, step=None):
    """What is said of a loop that calls `evaluate` after every so many steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def loop(watched, number):
        optimizer.zero_grad()
        (model(torch.randn(16, 6)) if step is None else step(model, torch.randn(16, 6))).square().mean().backward()
        optimizer.step()
        if number % every == every - 1:
            evaluate(model)

    found = in_loop(model, optimizer, loop, RULES).values()
    assert (F.dropout, F.batch_norm) == BEFORE
    return [(each.rule, str(each.severity), each.rows, each.first_step, each.message) for each in found]


def validated(model, batches=4):
    with torch.no_grad():
        for _ in range(batches):
            model(torch.randn(16, 6))


def as_it_should_be(model):
    model.eval()
    validated(model)
    model.train()


def test_a_validation_in_training_mode_is_a_note_with_its_line():
    ((rule, severity, rows, step, message),) = told(Model(), validated)
    assert (rule, severity, rows, step) == ("EvaluationInTrainingMode", "info", ("",), 10)
    text = (
        "The model is called without gradients in training mode, 3 times in a row or more: elements are dropped at drop and the"
    )
    assert re.sub(r"y:\d+", "y:1", message) == f"{text} batches move the running statistics of norm ({FILE}:1 in validated)."


def test_a_dropout_that_is_not_told_the_mode_is_named_with_its_line():
    ((rule, severity, rows, step, message),) = told(nn.Sequential(Forgetful()), as_it_should_be)
    assert (rule, severity, rows, step) == ("DropoutInEvaluation", "warning", ("0",), 10)
    text = "0: a function drops elements in evaluation mode, because 0 does not tell it the mode"
    assert re.sub(r"y:\d+", "y:1", message) == f"{text} ({FILE}:1 in forward)."


class Forgetful(Model):
    """A dropout by a function that is not told the mode."""

    def forward(self, x):
        return self.head(F.dropout(self.norm(self.inner(x)), 0.3))


class Sampling(Model):
    """A dropout that is to drop in evaluation too."""

    def forward(self, x):
        return self.head(F.dropout(self.norm(self.inner(x)), 0.3, training=True))


class Checkpointed(Model):
    """A reentrant checkpoint, whose first forward pass has no gradients."""

    def forward(self, x):
        return checkpoint(super().forward, x.requires_grad_(), use_reentrant=True)


def pseudo_labelled(model, x):
    with torch.no_grad():
        target = model(x)
    return model(x) - target


def nothing(model):
    """No evaluation."""


@pytest.mark.parametrize(
    ("model", "evaluate", "step"),
    [
        (Model, as_it_should_be, None),
        (Sampling, as_it_should_be, None),
        (Checkpointed, nothing, None),
        (Model, nothing, pseudo_labelled),
        (Model, lambda model: update_bn([torch.randn(16, 6) for _ in range(5)], model), None),
        (Model, lambda model: validated(Model()), None),
    ],
    ids=["usual", "told to drop", "checkpointing", "pseudo-labels", "update_bn", "another model"],
)
def test_what_is_done_on_purpose_is_silent(model, evaluate, step):
    assert told(model(), evaluate, step=step) == []


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is")
def test_the_functions_are_scripted_and_compiled_as_they_are():
    heard = []
    listening = [Listening(F, name, lambda args, kwargs: heard.append(1)) for name in ("dropout", "batch_norm")]
    for each in listening:
        each.start()
    module = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(3))
    scripted = torch.jit.script(module)
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    assert scripted(torch.ones(4, 3)).shape == compiled(torch.ones(4, 3)).shape == (4, 3)
    module(torch.ones(4, 3))
    assert len(heard) >= 2
    for each in listening:
        each.remove()


class Validated(Net):
    """Validates by a Trainer, with a dropout that is not told the mode."""

    def forward(self, x):
        return F.dropout(super().forward(x), 0.3)

    def validation_step(self, batch, batch_idx):
        self.log("val", self(batch[0]).mean())

    def val_dataloader(self):
        return torch.utils.data.DataLoader([(torch.randn(16, 6),)] * 3, batch_size=None)


def test_a_validation_of_a_trainer_is_heard(tmp_path):
    batches = [(torch.randn(16, 6), torch.randn(16, 3)) for _ in range(20)]
    found = in_trainer(tmp_path, Validated(), batches, RULES, val_check_interval=5)
    assert {rule: (str(each.severity), each.first_step) for rule, each in found.items()} == {
        "DropoutInEvaluation": ("warning", 5)
    }
