import pytest
import torch
from torch import nn

from tests.checks._training import batch, net, result_of


def normed(bias, norm=nn.BatchNorm1d):
    return nn.Sequential(nn.Linear(4, 8, bias=bias), norm(8), nn.ReLU(), nn.Linear(8, 3))


def test_a_bias_in_front_of_a_batch_norm_is_a_warning():
    result = result_of("BiasBeforeNorm", normed(True))
    assert (result.status, result.rows, result.message) == (
        "warn",
        ("0.bias",),
        "0.bias: the norm behind this bias takes it away",
    )
    assert result_of("BiasBeforeNorm", normed(False)).status == "pass"
    assert result_of("BiasBeforeNorm", normed(True, nn.LayerNorm)).message == "no norm subtracts the mean of a channel"


def test_a_layer_that_makes_its_input_large_is_named():
    model = net()
    assert result_of("PoorInitialization", model).status == "pass"
    nn.init.normal_(model[0].weight, std=60.0)
    result = result_of("PoorInitialization", model)
    assert (result.status, result.rows) == ("warn", ("0",)) and result.measured > 30
    assert "Put a norm between the layers." in result.next_steps
    result = result_of("PoorInitialization", nn.Sequential(nn.LayerNorm(4), *model))
    assert (result.status, result.rows) == ("warn", ("1",)) and "Put a norm between the layers." not in result.next_steps


def test_a_row_of_layers_that_fades_is_named_unless_norms_stand_between():
    def model(*norms):
        torch.manual_seed(0)
        layers = [each for _ in range(5) for each in (nn.Linear(8, 8, bias=False), *norms)]
        made = nn.Sequential(nn.Linear(4, 8), *layers, nn.Linear(8, 3))
        for layer in made[1:-1]:
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=0.05)
        return made

    result = result_of("PoorInitialization", model())
    assert result.status == "warn" and result.measured < 1e-3 and "that of the first layer of its row" in result.message
    assert result_of("PoorInitialization", model(nn.LayerNorm(8))).status == "pass"


def test_the_scale_of_an_input_in_front_of_a_norm_is_skipped_unless_it_is_almost_0():
    inputs, labels = batch()
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    result = result_of("InputNotNormalised", model, (200 * inputs, labels))
    assert result.status == "skip" and result.message.startswith("1 behind the first layer is a norm")
    assert "0 everywhere" in result_of("InputNotNormalised", model, (0 * inputs, labels)).message
    result = result_of("InputNotNormalised", model, (1e-4 * inputs, labels))
    assert result.status == "warn" and result.measured < result.threshold


def test_a_norm_of_each_sample_removes_the_scale_of_an_input_and_not_its_offset():
    inputs, labels = batch()
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3))
    assert result_of("InputNotNormalised", model, (200 * inputs, labels)).status == "skip"
    result = result_of("InputNotNormalised", model, (inputs + 100, labels))
    assert result.status == "warn" and "1 behind it is a norm over the units of each sample" in result.message
    model[1] = nn.BatchNorm1d(8)
    assert result_of("InputNotNormalised", model, (inputs + 100, labels)).status == "skip"


def test_large_vectors_of_an_embedding_are_a_warning():
    model = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(8, 3))
    nn.init.normal_(model[0].weight, std=100.0)
    tokens = torch.randint(9, (12, 2))
    assert result_of("PoorInitialization", model, (tokens, batch()[1])).rows == ("0",)


@pytest.mark.parametrize(
    ("scale", "shift", "said"),
    [
        (60.0, 127.0, "a mean of 1"),
        (0.0, 0.0, "the input is 0 everywhere"),
        (1e-5, 0.0, "deviation"),
        (0.1, 20.0, "a mean of 20"),
    ],
)
def test_inputs_far_from_normal_are_a_warning(scale, shift, said):
    inputs, labels = batch()
    result = result_of("InputNotNormalised", net(), (inputs * scale + shift, labels))
    assert (result.status, result.rows) == ("warn", ("0",)) and said in result.message


def test_what_a_model_normalises_itself_passes_or_is_skipped():
    class Dividing(nn.Sequential):
        def forward(self, x):
            return super().forward((x - 127) / 60)

    inputs, labels = batch()
    assert result_of("InputNotNormalised", Dividing(*net()), (inputs * 60 + 127, labels)).status == "pass"
    result = result_of("InputNotNormalised", nn.Sequential(nn.BatchNorm1d(4), *net()), (inputs * 60 + 127, labels))
    assert (result.status, result.message) == ("skip", "the first layer with weights is a norm or an embedding")
