import torch
from torch import nn

from lightning_hooks import check
from tests.checks._training import CROSS_ENTROPY, batch, net, result_of

NAME = "OverfitsBatch"


def with_rate(rate, model=None, **options):
    model = model or net(nn.Dropout(0.9), width=32)
    return result_of(NAME, model, optimizer=torch.optim.Adam(model.parameters(), lr=rate), **options)


def test_a_batch_is_learnt_without_dropout_or_the_check_says_how_far_it_came():
    assert with_rate(0.03).status == "pass"
    result = with_rate(3e-3, fields={"steps": 5})
    assert result.status == "warn" and "in 5 steps" in result.message and 0.5 < result.measured < 1
    assert with_rate(1e4, net()).status == "fail"


def test_it_runs_only_if_it_is_asked_for():
    model = net()
    report = check(model, batch(), loss=CROSS_ENTROPY, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    assert NAME not in [each.check for each in report]
