from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.checks._training import batch, net, result_of


class Module(nn.Module):
    def __init__(self, change):
        super().__init__()
        self.body, self.head, self.change = net(), nn.Linear(3, 3), change

    def forward(self, x):
        return self.head(self.change(self.body(x)))


class Logarithm(nn.Module):
    def forward(self, x):
        return x.relu().log()


def test_the_module_that_makes_infinity_is_named():
    result = result_of("NonFinite", net(Logarithm(), nn.Linear(3, 3)))
    assert (result.status, result.rows) == ("fail", ("3",)) and "from a finite input this module makes NaN" in result.message


def test_a_batch_that_holds_nan_is_named_and_nan_that_a_model_replaces_passes():
    inputs, labels = batch()
    inputs[3, 1] = float("nan")
    result = result_of("NonFinite", net(), (inputs, labels))
    assert (result.status, result.rows) == ("fail", ("batch[0]",))

    class Filling(nn.Sequential):
        def forward(self, x):
            return super().forward(x.nan_to_num())

    assert result_of("NonFinite", Filling(*net()), (inputs, labels)).status == "pass"


def test_outputs_that_are_all_the_same_fail():
    model = net()
    nn.init.constant_(model[0].bias, -100.0)
    result = result_of("ConstantOutput", model)
    assert (result.status, result.rows, result.measured) == ("fail", ("the model",), 0.0)
    assert result.message == "the model: all 12 samples get the same output, although their inputs differ"


@pytest.mark.parametrize("norm", [nn.BatchNorm1d, partial(nn.InstanceNorm1d, track_running_stats=True)])
def test_a_deep_model_with_fresh_statistics_is_judged_as_in_training(norm):
    torch.manual_seed(0)
    given = torch.randn(12, 4, 6), batch()[1]

    layers = [each for _ in range(24) for each in (nn.Conv1d(4, 4, 1, bias=False), norm(4), nn.ReLU())]
    result = result_of("ConstantOutput", nn.Sequential(*layers, nn.Flatten(), nn.Linear(24, 3, bias=False)), given)
    assert result.status == "pass" and result.measured > 0.01


def test_dead_units_behind_a_norm_fail():
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    nn.init.constant_(model[1].bias, -1e3)
    assert result_of("ConstantOutput", model).rows == ("the model",)


def test_a_head_of_zeros_and_noise_of_dropout_pass():
    model = net(nn.Dropout())
    nn.init.zeros_(model[2].weight)
    result = result_of("ConstantOutput", model)
    assert (result.status, result.message) == ("pass", "outputs are alike only because a layer begins with zeros")


def test_samples_that_are_all_the_same_are_a_warning():
    inputs, labels = batch()
    result = result_of("ConstantOutput", net(), (inputs[:1].repeat(12, 1), labels))
    assert (result.status, result.rows, result.message) == (
        "warn",
        ("batch[0]",),
        "batch[0]: all 12 samples of the batch are the same",
    )


def test_dropout_that_ignores_the_mode_fails_and_a_layer_of_dropout_passes():
    result = result_of("EvalIsDeterministic", Module(lambda x: F.dropout(x, 0.5)))
    assert result.status == "fail" and "dropout acts in evaluation mode" in result.message
    assert result_of("EvalIsDeterministic", net(nn.Dropout())).status == "pass"


def test_a_random_mask_is_a_warning_and_samples_that_a_model_draws_are_skipped():
    result = result_of("EvalIsDeterministic", Module(lambda x: x * (torch.rand(x.shape) > 0.5)))
    assert result.status == "warn" and "rand acts in evaluation mode" in result.message
    result = result_of("EvalIsDeterministic", Module(lambda x: x[:, :3] * torch.randn_like(x)))
    assert result.status == "skip" and "the model draws samples (randn_like)" in result.message


def test_a_call_that_changes_the_model_in_evaluation_fails():
    calls = []

    def counted(x):
        calls.append(1)
        return x * len(calls)

    result = result_of("EvalIsDeterministic", Module(counted))
    assert result.status == "fail" and "two runs differ, because the first one changed the model" in result.message


def test_noise_of_fixed_size_is_a_warning_and_noise_of_a_learned_size_is_skipped():
    result = result_of("EvalIsDeterministic", Module(lambda x: x + 0.1 * torch.randn_like(x)))
    assert result.status == "warn" and "noise of fixed size is added in evaluation mode (randn_like)" in result.message
    assert result_of("EvalIsDeterministic", Module(lambda x: x + x.exp() * torch.randn_like(x))).status == "skip"
    assert result_of("EvalIsDeterministic", Module(lambda x: torch.randn(len(x), 3) * 2)).status == "skip"
