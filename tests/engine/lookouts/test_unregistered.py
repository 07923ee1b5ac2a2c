"""A lookout notes parts in plain lists at which gradients arrive and which nothing changes."""

import pytest
import torch
from torch import nn

from lightning_hooks import assert_no_hooks
from tests.callbacks.models import Net
from tests.engine.lookouts.loops import in_loop, in_trainer


class Listed(nn.Module):
    """Adds what a list of layers gives to what a layer gives."""

    def __init__(self, blocks, name="blocks"):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.name = nn.Linear(4, 4), name
        setattr(self, name, blocks)

    def forward(self, inputs):
        hidden, blocks = self.first(inputs), getattr(self, self.name)
        for each in blocks.values() if isinstance(blocks, dict) else blocks:
            hidden = hidden + (each(hidden) if isinstance(each, nn.Module) else each)
        return hidden


def said(model, also=(), each=lambda step: None):
    optimizer = torch.optim.SGD([*model.parameters(), *also], 0.01)

    def loop(watched, step):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        each(step)

    found = in_loop(model, optimizer, loop, ["NotRegistered"])
    assert_no_hooks(model)
    return found


def layers(count=2):
    return [nn.Linear(4, 4) for _ in range(count)]


def test_modules_in_a_plain_list_are_named_after_twelve_steps():
    model = Listed(layers())
    finding = said(model)["NotRegistered"]
    assert (finding.rows, finding.first_step, finding.severity) == (("blocks",), 12, "warning")
    assert finding.message == (
        "blocks: it is a list of 2 modules, which the model does not register: gradients arrive at its 4 parameters, and in 12 "
        "steps nothing has changed them."
    )
    assert not any(each._backward_hooks for layer in model.blocks for each in layer.parameters())


@pytest.mark.parametrize(
    ("blocks", "what"),
    [
        (tuple(layers()), "a tuple of 2 modules"),
        ({"one": nn.Linear(4, 4)}, "a dict of 1 module"),
        ([nn.Parameter(torch.zeros(4)), nn.Parameter(torch.zeros(4))], "a list of 2 parameters"),
    ],
)
def test_other_collections_are_looked_into(blocks, what):
    finding = said(Listed(blocks))["NotRegistered"]
    assert finding.severity == "warning" and what in finding.message


def test_a_list_of_one_entry_is_a_note():
    assert said(Listed(layers(1)))["NotRegistered"].severity == "info"


def evaluated():
    return [each.eval() for each in layers()]


def frozen():
    return [each.requires_grad_(False) for each in layers()]


@pytest.mark.parametrize(
    "model",
    [
        lambda: Listed(nn.ModuleList(layers())),
        lambda: Listed(evaluated()),
        lambda: Listed(frozen()),
        lambda: Listed(layers(), "lpips"),
        lambda: Listed(layers(), "_teacher"),
        lambda: Listed([torch.zeros(4), torch.zeros(4)]),
    ],
    ids=["registered", "evaluated", "frozen", "a loss by its name", "a teacher by its name", "tensors"],
)
def test_what_is_registered_or_kept_as_it_is_is_no_finding(model):
    assert said(model()) == {}


def test_layers_that_are_registered_too_are_no_finding():
    model = Listed(layers())
    model.also = nn.ModuleList(model.blocks)
    assert said(model) == {}


def test_what_an_optimizer_holds_is_no_finding():
    model = Listed(layers())
    parts = [each for layer in model.blocks for each in layer.parameters()]
    assert said(model, parts) == {}


def test_what_another_optimizer_trains_at_every_fifth_step_is_no_finding():
    model = Listed(layers())
    other = torch.optim.SGD([each for layer in model.blocks for each in layer.parameters()], 0.01)
    assert said(model, each=lambda step: other.step() if step % 5 == 4 else None) == {}


class Unused(Listed):
    """Keeps layers that it calls without a graph."""

    def forward(self, inputs):
        with torch.no_grad():
            hidden = self.blocks[0](inputs)
        return self.first(inputs) - hidden


def test_a_part_that_gets_no_gradient_is_no_finding():
    assert said(Unused(layers())) == {}


class Lightning(Net):
    """A module of Lightning with layers in a list."""

    def __init__(self):
        super().__init__()
        self.layers = layers()

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) + sum(each(batch[0][:, :4]).square().mean() for each in self.layers)


def test_a_fit_of_a_trainer_is_looked_at_too(tmp_path):
    batches = [(torch.randn(4, 6), torch.randn(4, 3)) for _ in range(20)]
    assert in_trainer(tmp_path, Lightning(), batches, ["NotRegistered"])["NotRegistered"].rows == ("layers",)
    assert in_trainer(tmp_path, Net(), batches, ["NotRegistered"]) == {}
