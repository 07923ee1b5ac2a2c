import sys
from types import ModuleType

import pytest
import torch
from torch import nn

from lightning_hooks import check
from tests.checks._training import CROSS_ENTROPY, batch, net, result_of


def test_a_step_that_raises_fails_with_its_error_and_all_others_are_skipped():
    report = check(nn.Linear(5, 3), batch(), loss=CROSS_ENTROPY)
    assert report["StepRuns"].status == "fail"
    assert report["StepRuns"].message.startswith("the step raises RuntimeError: mat1 and mat2 shapes cannot be multiplied")
    assert [each.check for each in report if each.status == "pass"] == ["FrozenMoves", "AccumulationNotDivided"]
    assert len(report.of("fail")) == 1
    assert report["NonFinite"].message == report["StepRuns"].message


def test_a_loss_without_a_graph_has_no_backward():
    result = result_of("StepRuns", net(), loss=lambda output, target: output.detach().sum())
    assert (result.status, result.message) == (
        "fail",
        "the step runs without a backward: no loss depends on a trainable parameter",
    )


def by_hand(module, given):
    loss = CROSS_ENTROPY(module(given[0]), given[1])
    parameters = list(module.parameters())
    for parameter, grad in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
        parameter.grad = grad
    return loss.detach()


def by_chance(module, given):
    """A step of an evolution strategy: it tries a random change and keeps it if the loss falls."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
        return CROSS_ENTROPY(module(given[0]), given[1])


@pytest.mark.parametrize("has_optimizer", [True, False])
def test_gradients_that_are_made_by_hand_are_gradients(has_optimizer):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1) if has_optimizer else None
    report = check(model, batch(), step=by_hand, optimizer=optimizer)
    assert report["StepRuns"].status == "pass" and "without the backward of a loss" in report["StepRuns"].message
    assert report["NoGradient"].message == "a gradient reaches 4 trainable parameters"
    assert report.of("fail") == []


def test_a_step_that_moves_parameters_without_gradients_runs():
    report = check(net(), batch(), step=by_chance, checks=["StepRuns", "NoGradient"])
    assert report["StepRuns"].status == "pass"
    assert (report["NoGradient"].status, report["NoGradient"].message) == (
        "skip",
        "the step moves parameters without gradients",
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


class Installed(Detached):
    """The same as code of an installed library: the body runs with a graph, and one layer is not used."""

    def forward(self, x):
        return self.head(self.body(x).relu())


class WithoutGraph(Detached):
    """The body of a library runs without a graph, as behind a reentrant checkpoint."""

    def forward(self, x):
        with torch.no_grad():
            hidden = self.body(x)
        return self.head(hidden)


@pytest.mark.parametrize(
    ("kind", "is_installed", "status", "rows"),
    [
        (Installed, False, "fail", ("unused.weight", "unused.bias")),
        (Installed, True, "warn", ("unused.weight", "unused.bias")),
        (WithoutGraph, True, "fail", ("body.weight", "body.bias", "unused.weight", "unused.bias")),
    ],
)
def test_what_the_code_of_a_library_does_not_use_is_a_warning(monkeypatch, kind, is_installed, status, rows):
    library = ModuleType("library")
    library.__file__ = "/usr/lib/python3/site-packages/library.py"
    monkeypatch.setitem(sys.modules, "library", library)
    if is_installed:
        monkeypatch.setattr(kind.forward, "__module__", "library")
    result = result_of("NoGradient", nn.Sequential(kind()))
    assert (result.status, result.rows) == (status, tuple(f"0.{row}" for row in rows))
    assert ("the library's code does not use the parameter" in result.message) == (status == "warn")


def test_a_cut_in_front_of_a_library_is_no_part_that_it_does_not_use(monkeypatch):
    monkeypatch.setattr("lightning_hooks.checks.catalogue.movement.is_of_library", lambda module: isinstance(module, Inner))

    class Inner(nn.Sequential):
        def forward(self, x):
            return super().forward(x)

    class Cut(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.head = Inner(*net()), nn.Linear(3, 3)

        def forward(self, x):
            return self.head(self.inner(x).detach())

    assert result_of("NoGradient", Cut()).status == "fail"


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
