"""A lookout compares running statistics with what the batches had, which follows from two looks at the statistics."""

import pytest
import torch
from torch import nn

from lightning_hooks import assert_no_hooks
from tests.callbacks.models import Net
from tests.engine.lookouts.loops import in_loop, in_trainer

SLOW, ONE_BATCH = "NormStatisticsSlow", "NormStatisticsOfOneBatch"
RULES = [SLOW, ONE_BATCH]


class Normed(Net):
    """A network with a norm behind inputs of mean 3."""

    def __init__(self, **options):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.BatchNorm1d(6, **options), nn.Linear(6, 3))


def batches(count=120):
    torch.manual_seed(1)
    return [(3 + 2 * torch.randn(64, 6), torch.randn(64, 3)) for _ in range(count)]


def test_statistics_that_never_move_are_named_at_once(tmp_path):
    finding = in_trainer(tmp_path, Normed(momentum=0.0), batches(), RULES)[SLOW]
    assert (finding.rows, finding.severity) == (("body.0",), "warning")
    assert finding.first_step <= 5
    assert finding.message == (
        "body.0: the running statistics of this norm never move (momentum=0): evaluation uses mean 0 and variance 1."
    )


def test_statistics_that_do_not_arrive_before_the_fit_ends_are_named_with_their_distance(tmp_path):
    finding = in_trainer(tmp_path, Normed(momentum=0.002), batches(), RULES)[SLOW]
    assert (finding.rows, finding.severity) == (("body.0",), "warning")
    assert finding.message == (
        "body.0: the running statistics of this norm take 0.2 % of each batch (momentum=0.002); after 10 of them, they are to "
        "98 % still mean 0 and variance 1, and from those of the batches 1.5 standard deviations and a factor of 3.8 in "
        "variance away."
    )


def test_statistics_of_the_last_batch_are_a_note(tmp_path):
    finding = in_trainer(tmp_path, Normed(momentum=0.99), batches(20), RULES)[ONE_BATCH]
    assert (finding.rows, finding.severity) == (("body.0",), "info")
    assert finding.message == (
        "body.0: the running statistics of this norm are to 99 % those of the last batch (momentum=0.99)."
    )


def pretrained():
    model = Normed(momentum=0.0)
    model.body[0].running_mean.fill_(3)
    model.body[0].running_var.fill_(4)
    return model


@pytest.mark.parametrize(
    ("model", "count"),
    [
        (Normed(), 120),
        (Normed(momentum=0.04), 120),
        (Normed(momentum=None), 120),
        (Normed(momentum=0.002), 20),
        (Normed(momentum=0.0, track_running_stats=False), 20),
        (Normed(momentum=0.0).eval(), 20),
        (pretrained(), 20),
    ],
    ids=["default", "slow", "mean of all", "a trial of a few steps", "no statistics", "evaluates", "pretrained"],
)
def test_statistics_that_arrive_or_are_kept_on_purpose_are_no_finding(tmp_path, model, count):
    assert in_trainer(tmp_path, model, batches(count), RULES) == {}


def test_a_momentum_that_is_0_at_the_second_forward_pass_of_a_step_only_is_no_finding():
    """As sharpness-aware minimization takes care that a batch counts once."""
    model = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def loop(watched, step):
        for momentum in (0.1, 0.0):
            model[0].momentum = momentum
            optimizer.zero_grad()
            model(3 + torch.randn(32, 6)).square().mean().backward()
        optimizer.step()

    assert in_loop(model, optimizer, loop, RULES, steps=60) == {}
    assert_no_hooks(model)


def test_a_plain_loop_whose_end_is_not_known_is_judged_late():
    model = nn.Sequential(nn.BatchNorm1d(6, momentum=0.001), nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)

    def loop(watched, step):
        optimizer.zero_grad()
        model(3 + torch.randn(32, 6)).square().mean().backward()
        optimizer.step()

    assert in_loop(model, optimizer, loop, RULES, steps=540)[SLOW].first_step >= 490
