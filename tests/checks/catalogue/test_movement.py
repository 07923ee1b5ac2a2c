import pytest
import torch
from torch import nn

from lightning_hooks import check
from tests.checks._training import CROSS_ENTROPY, batch, net, result_of


def test_a_step_that_raises_fails_with_its_error_and_all_others_are_skipped():
    report = check(nn.Linear(5, 3), batch(), loss=CROSS_ENTROPY)
    assert report["StepRuns"].status == "fail"
    assert report["StepRuns"].message.startswith("the step raises RuntimeError: mat1 and mat2 shapes cannot be multiplied")
    assert [each.check for each in report if each.status == "pass"] == ["FrozenMoves"] and len(report.of("fail")) == 1
    assert report["NonFinite"].message == report["StepRuns"].message


def test_a_loss_without_a_graph_has_no_backward():
    result = result_of("StepRuns", net(), loss=lambda output, target: output.detach().sum())
    assert (result.status, result.message) == (
        "fail",
        "the step runs without a backward: no loss depends on a trainable parameter",
    )


class Detached(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.unused, self.head = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.body(x).relu().detach())


def test_a_parameter_behind_a_detach_and_one_that_nothing_calls_are_named():
    result = result_of("NoGradient", Detached())
    assert (result.status, result.rows) == ("fail", ("body.weight", "body.bias", "unused.weight", "unused.bias"))
    assert "no gradient comes in 7 steps, although the module runs" in result.message
    model = Detached()
    model.body.requires_grad_(False)
    result = result_of("NoGradient", model)
    assert result.rows == ("unused.weight", "unused.bias") and "because nothing calls the module" in result.message


def test_a_layer_that_no_optimizer_holds_and_no_gradient_reaches_is_a_warning():
    model = Detached()
    optimizer = torch.optim.SGD(model.head.parameters(), lr=0.1)
    result = result_of("NoGradient", model, optimizer=optimizer)
    assert result.status == "warn" and "no optimizer holds the parameter" in result.message


def test_a_layer_of_zeros_at_the_end_lets_gradients_through_after_a_step():
    model = net()
    nn.init.zeros_(model[2].weight)
    assert result_of("NoGradient", model).status == "pass"
    assert result_of("NoGradient", model, optimizer=None).status == "pass"


class LateNaN(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.calls = net(), 0

    def forward(self, x):
        self.calls += 1
        return self.body(x) * (0.0 if self.calls == 1 else float("nan"))


def test_a_gradient_that_is_0_in_the_first_step_and_nan_in_the_next_is_there():
    assert result_of("NoGradient", LateNaN(), loss=lambda output, target: output.sum()).status == "pass"


def test_dead_units_have_gradients_of_exactly_0():
    model = net()
    nn.init.constant_(model[0].bias, -100.0)
    result = result_of("NoGradient", model)
    assert (result.status, result.rows[0]) == ("fail", "0.weight") and "the gradient is exactly 0 in 7 steps" in result.message


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.experts, self.head = nn.ModuleList(nn.Linear(4, 4) for _ in range(3)), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.experts[1](x))


def test_an_expert_that_gets_no_sample_is_left_out():
    result = result_of("NoGradient", Experts())
    assert result.status == "pass" and "left out as not used in this batch or as copies: experts.0.weight" in result.message


def test_a_gradient_that_is_not_finite_is_named():
    def loss(output, target):
        return (output - output.detach()).square().sum().sqrt()  # a loss of 0, whose gradient is 0/0

    result = result_of("NonFinite", net(), loss=loss)
    assert result.status == "fail" and "holds NaN or infinity at the first step" in result.message
    assert result_of("NoGradient", net(), loss=loss).status == "pass"


def test_a_learning_rate_of_0_moves_nothing_unless_a_scheduler_warms_up():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    result = result_of("UnchangedParameter", model, optimizer=optimizer)
    assert result.status == "fail" and "the learning rate is 0, and no scheduler is to raise it" in result.message
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / 10)
    assert optimizer.param_groups[0]["lr"] == 0
    assert result_of("UnchangedParameter", model, optimizer=optimizer).status == "pass"
    assert optimizer.param_groups[0]["lr"] == 0


def test_an_update_that_is_lost_in_rounding_is_named():
    model = net()
    nn.init.constant_(model[2].bias, 1e6)
    result = result_of("UnchangedParameter", model, optimizer=torch.optim.SGD(model.parameters(), lr=1e-4))
    assert (result.status, result.rows) == ("fail", ("2.bias",)) and "(learning rate 0.0001)" in result.message


def test_the_largest_move_is_told():
    result = result_of("UnchangedParameter", nn.Linear(4, 3), optimizer=None)
    assert (result.status, result.message) == ("skip", "no optimizer was given")
    model = net()
    result = result_of("UnchangedParameter", model, optimizer=torch.optim.Adam(model.parameters(), lr=0.25))
    assert result.status == "pass" and result.measured == pytest.approx(0.25, rel=1e-3)


class Decaying(torch.optim.SGD):
    def step(self, closure=None):
        with torch.no_grad():
            for group in self.param_groups:
                for each in group["params"]:
                    each.mul_(0.9)
        return super().step(closure)


def test_a_frozen_parameter_that_an_optimizer_moves_fails_and_one_that_code_writes_is_a_warning():
    model = net()
    model[0].weight.requires_grad_(False)
    result = result_of("FrozenMoves", model, optimizer=Decaying(model.parameters(), lr=0.1))
    assert (result.status, result.rows) == ("fail", ("0.weight",)) and "an optimizer moves this" in result.message

    class Clamping(nn.Sequential):
        def forward(self, x):
            self[0].weight.data.mul_(0.5)
            return super().forward(x)

    model = nn.Sequential(Clamping(*net()))
    model[0][0].weight.requires_grad_(False)
    result = result_of("FrozenMoves", model)
    assert (result.status, result.rows) == ("warn", ("0.0.weight",))


def test_a_teacher_that_the_step_averages_is_left_out():
    class Student(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.average = net(), net().requires_grad_(False)

        def forward(self, x):
            with torch.no_grad():
                for ours, theirs in zip(self.average.parameters(), self.net.parameters(), strict=True):
                    ours.lerp_(theirs + 1, 0.1)
            return self.net(x)

    result = result_of("FrozenMoves", Student())
    assert result.status == "pass" and "averaged by the step" in result.message


def test_the_statistics_of_a_frozen_batch_norm_are_watched():
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    model[:2].requires_grad_(False)
    result = result_of("FrozenMoves", model)
    assert (result.status, result.rows) == ("warn", ("1",)) and "running statistics change" in result.message
    model[1].eval()
    assert result_of("FrozenMoves", model).status == "pass"


def test_parameters_that_are_meant_to_be_frozen_and_are_not_fail():
    model = net()
    model[0].weight.requires_grad_(False)
    result = result_of("FrozenMoves", model, fields={"params": ("0.*",)})
    assert (result.status, result.rows) == ("fail", ("0.bias",))
    assert result_of("FrozenMoves", model, fields={"params": ("0.weight",)}).status == "pass"


class Packed(nn.Module):
    """A layer on frozen bytes that are stored as floats, as of a quantised model."""

    def __init__(self, writes):
        super().__init__()
        bits = torch.tensor([0x7FC00001, 0x7FC00002, -0x80000000, 0], dtype=torch.int32)
        self.net = net()
        self.net.packed = nn.Parameter(bits.view(torch.float32), requires_grad=False)
        self.writes = writes

    def forward(self, x):
        if self.writes:
            self.net.packed.data.view(torch.int32)[0] += 1
        return self.net(x) + (self.net.packed.view(torch.int32)[1] & 1)


@pytest.mark.parametrize("writes", [False, True])
def test_frozen_bytes_that_are_no_numbers_are_compared_bit_by_bit(writes):
    model = Packed(writes)
    before = model.net.packed.view(torch.int32).tolist()
    optimizers = torch.optim.SGD(model.net.parameters(), lr=0.1), torch.optim.SGD(model.parameters(), lr=0.1)
    for optimizer in optimizers:
        result = result_of("FrozenMoves", model, optimizer=optimizer)
        assert (result.status, result.rows) == (("warn", ("net.packed",)) if writes else ("pass", ()))
    assert model.net.packed.view(torch.int32).tolist() == before
