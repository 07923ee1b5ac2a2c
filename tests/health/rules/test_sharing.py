"""The rule on layers that are one reads the structure; only shared statistics are a fact."""

import copy

import pytest
from torch import nn

from lightning_hooks.engine.participants.facts import structure_of
from lightning_hooks.health.roles import NO_STRUCTURE
from lightning_hooks.health.rules.sharing import LayersAreOne
from tests.health.rules.made import diagnosed, reason, run, without_structure

FALLS, STANDS = (lambda step: 3 * 0.98**step), (lambda step: 3.0 + step % 3 / 99)


def block(norm=nn.BatchNorm1d):
    return nn.Sequential(nn.Linear(4, 4), norm(4), nn.ReLU())


def made(layers):
    model = nn.Module()
    model.blocks = layers
    return structure_of(model)


def said(layers, loss=FALLS):
    return diagnosed(LayersAreOne(), run(made(layers), {}, loss=loss)).findings


def test_a_block_times_n_with_a_batch_norm_is_a_warning():
    (finding,) = said(nn.Sequential(*[block()] * 4))
    assert (finding.rows, finding.first_step, finding.severity) == (("blocks.0",), 0, "warning")
    assert finding.message == (
        "blocks.0: blocks.1, blocks.2, blocks.3 are the same object, so that the 4 layers share 4 parameters, and its "
        "batch norm mixes the statistics of 4 depths."
    )


@pytest.mark.parametrize("layers", [nn.ModuleList([block()] * 3), nn.Sequential(*[block(nn.LayerNorm)] * 3)])
def test_layers_that_may_share_on_purpose_are_a_note_until_the_loss_stands_still(layers):
    assert [each.severity for each in said(layers)] == ["info"]
    assert [each.severity for each in said(layers, STANDS)] == ["warning"]


def test_what_is_shared_inside_of_two_layers_is_named_by_its_own_name():
    first, second = block(nn.LayerNorm), block(nn.LayerNorm)
    second[0] = first[0]
    (finding,) = said(nn.Sequential(first, second))
    assert finding.message == ("blocks.0.0: blocks.1.0 is the same object, so that the 2 layers share 2 parameters.")


def tied_words():
    layers = nn.ModuleDict({"embed": nn.Embedding(5, 4), "head": nn.Linear(4, 5)})
    layers["head"].weight = layers["embed"].weight
    return layers


def tied_weights():
    layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    layers[1].weight = layers[0].weight
    return layers


ONE = nn.ReLU()


@pytest.mark.parametrize(
    "layers",
    [
        nn.Sequential(*[block() for _ in range(3)]),
        nn.Sequential(*[copy.deepcopy(block()) for _ in range(3)]),
        nn.Sequential(nn.Linear(4, 4), ONE, nn.Linear(4, 4), ONE),
        nn.Sequential(*[nn.Dropout()] * 3),
        tied_words(),
        tied_weights(),
        nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2), 2, enable_nested_tensor=False),
    ],
    ids=["anew", "copies", "one activation", "one dropout", "a tied head", "tied weights", "clones"],
)
def test_layers_of_their_own_and_modules_without_parameters_are_no_finding(layers):
    assert not said(layers, STANDS)


def test_it_says_what_it_lacks():
    views = without_structure(run(made(nn.Sequential(*[block()] * 2)), {}))
    assert reason(LayersAreOne(), views) == NO_STRUCTURE
