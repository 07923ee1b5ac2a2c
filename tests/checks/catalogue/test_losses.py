import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lightning_hooks import check
from tests.checks._training import batch, net, result_of


def test_labels_beyond_the_head_are_counted_before_torch_reads_them():
    inputs, labels = batch()
    result = result_of("LabelsFitHead", net(outputs=2), (inputs, labels))
    assert (result.status, result.rows, result.measured, result.threshold) == ("fail", ("2",), 2, 2)
    assert result.message == "2: 4 of 12 labels are 2 or more, up to 2, and the head has 2 outputs"
    result = result_of("LabelsFitHead", net(), (inputs, labels - 1))
    assert result.status == "fail" and "4 of 12 labels are below 0, down to -1, and are not `ignore_index`" in result.message
    result = result_of("LabelsFitHead", net(), (inputs, torch.where(labels == 0, -100, labels)))
    assert (result.status, result.message) == ("pass", "labels up to 2 fit 3 outputs")


def test_a_token_without_a_vector_is_named():
    model = nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(8, 3))
    tokens = torch.tensor([[1, 2], [3, 10]])
    result = result_of("LabelsFitHead", model, (tokens, torch.tensor([0, 1])))
    assert (result.status, result.message) == ("fail", "0: an index is 10, and the embedding has 10 vectors")


@pytest.mark.parametrize(
    ("outputs", "loss", "labels", "said"),
    [
        (1, nn.BCEWithLogitsLoss(), torch.full((12, 1), 2.0), "labels of a binary loss reach from 2 to 2"),
        (1, nn.CrossEntropyLoss(), torch.zeros(12, dtype=torch.long), "the cross entropy of a single output is always 0"),
        (1, nn.MSELoss(), torch.randn(12), "the output has the shape (12, 1) and the target (12,)"),
    ],
)
def test_labels_that_do_not_fit_their_loss_fail(outputs, loss, labels, said):
    result = result_of("LabelsFitHead", net(outputs=outputs), (batch()[0], labels), loss)
    assert result.status == "fail" and said in result.message


def test_targets_that_an_activation_cannot_reach_are_a_warning():
    inputs, target = batch()[0], torch.linspace(-3, 3, 12)[:, None]
    result = result_of("LabelsFitHead", net(nn.Tanh(), outputs=1), (inputs, target), nn.MSELoss())
    assert (result.status, result.rows) == ("warn", ("3",))
    assert "targets reach from -3 to 3, and a tanh stands in front of `mse_loss`" in result.message
    assert result_of("LabelsFitHead", net(nn.Tanh(), outputs=1), (inputs, target / 3), nn.MSELoss()).status == "pass"
    result = result_of(
        "LabelsFitHead", net(outputs=1), (inputs, target), lambda output, wanted: (output - wanted).square().mean()
    )
    assert (result.status, result.message) == ("skip", "the step calls no loss function of torch that is known here")


BINARY = (torch.arange(12) % 2)[:, None].float()


@pytest.mark.parametrize(
    ("layers", "loss", "target", "status", "said"),
    [
        (
            [nn.Softmax(1)],
            F.cross_entropy,
            None,
            "fail",
            "a softmax stands in front of `cross_entropy`, which applies it again",
        ),
        ([nn.Sigmoid()], F.cross_entropy, None, "fail", "a sigmoid stands in front of `cross_entropy`"),
        ([nn.LogSoftmax(1)], F.cross_entropy, None, "warn", "applies it again without effect"),
        ([nn.ReLU()], F.cross_entropy, None, "warn", "no logit can be negative"),
        ([nn.LogSoftmax(1)], F.nll_loss, None, "pass", "nll_loss gets what it is made for"),
        ([nn.Softmax(1)], F.nll_loss, None, "fail", "probabilities are given to `nll_loss`"),
        ([], F.nll_loss, None, "fail", "`nll_loss` gets no log-probabilities"),
        ([nn.Linear(3, 1), nn.Sigmoid()], F.binary_cross_entropy_with_logits, BINARY, "fail", "which applies a sigmoid itself"),
        ([nn.Linear(3, 1), nn.Sigmoid()], F.binary_cross_entropy, BINARY, "pass", "gets what it is made for"),
        ([nn.Linear(3, 1)], F.mse_loss, BINARY, "skip", "the step calls no cross entropy of torch"),
    ],
)
def test_what_stands_in_front_of_a_loss(layers, loss, target, status, said):
    inputs, labels = batch()
    result = result_of("ActivationBeforeLoss", net(*layers), (inputs, labels if target is None else target), loss)
    assert result.status == status and said in result.message


def test_an_activation_behind_views_and_outside_of_modules_is_found():
    class Folded(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net()

        def forward(self, x):
            return self.net(x).softmax(-1).unsqueeze(0).permute(1, 2, 0).squeeze(2)

    assert result_of("ActivationBeforeLoss", Folded()).status == "fail"


def test_the_first_loss_is_compared_with_chance_and_a_smaller_one_passes():
    model = net()
    result = result_of("InitialLoss", model)
    assert result.status == "pass" and result.threshold == pytest.approx(2 * math.log(3))
    nn.init.normal_(model[2].weight, std=30.0)
    result = result_of("InitialLoss", model)
    assert (result.status, result.rows) == ("warn", ("2",)) and result.message.endswith(", and ln(3) is 1.1")
    assert result.measured > 3 * result.threshold
    assert result_of("InitialLoss", model, fields={"factor": 100.0}).status == "pass"


def test_labels_that_say_less_than_their_number_are_told_with_their_entropy():
    inputs, labels = batch()
    result = result_of("InitialLoss", net(outputs=20), (inputs, labels))
    assert result.message.endswith("and ln(20) is 3; the labels have an entropy of 1.1")


def test_advice_that_another_check_has_settled_is_left_out():
    model, optimizer = net(), None
    nn.init.normal_(model[2].weight, std=30.0)
    question = "Look whether the inputs are normalised."
    alone = check(model, batch(), loss=F.cross_entropy, checks=["InitialLoss"])["InitialLoss"]
    report = check(model, batch(), loss=F.cross_entropy, optimizer=optimizer, checks=["InitialLoss", "InputNotNormalised"])
    assert question in alone.next_steps and report["InputNotNormalised"].status == "pass"
    assert report["InitialLoss"].status == "warn" and question not in report["InitialLoss"].next_steps
    inputs, labels = batch()
    report = check(model, (inputs * 100, labels), loss=F.cross_entropy, checks=["InitialLoss", "InputNotNormalised"])
    assert question in report["InitialLoss"].next_steps


@pytest.mark.parametrize(
    ("sign", "factor", "status"), [(1, 1.0, "pass"), (-1, 1.0, "warn"), (-1, 0.25, "warn")], ids=["falls", "rises", "divided"]
)
def test_a_cross_entropy_that_the_step_raises_is_a_warning(sign, factor, status):
    result = result_of("LossUnbounded", net(), loss=lambda output, target: sign * factor * F.cross_entropy(output, target))
    assert (result.status, result.rows) == (status, ("2",) if status == "warn" else ())
    assert ("as its sign is negative" in result.message) == (status == "warn")


def test_an_action_that_is_made_less_likely_is_no_fault():
    """As of policy gradients: each sample has a factor, which is negative for this one."""

    def reinforce(output, target):
        return (-2.0 * F.cross_entropy(output, target, reduction="none")).mean()

    inputs, labels = batch()
    for given in ((inputs, labels), (inputs[:1], labels[:1])):
        assert result_of("LossUnbounded", net(), given, reinforce).status == "skip"


def test_a_term_that_is_raised_beside_a_larger_one_and_a_step_of_two_losses_are_no_fault():
    def confident(output, target):
        return F.cross_entropy(output, target) - 0.1 * F.cross_entropy(output, target.roll(1))

    assert result_of("LossUnbounded", net(), loss=confident).status == "pass"
    model = net()

    def step(module, given):
        F.cross_entropy(module(given[0]), given[1]).backward()
        return -F.cross_entropy(module(given[0]), given[1])

    result = check(model, batch(), step=step, checks=["LossUnbounded"])["LossUnbounded"]
    assert (result.status, result.message) == ("skip", "a step has 2 losses, and may raise one of them on purpose")


def test_a_loss_that_compares_samples_has_no_chance():
    def contrastive(output, target):
        features = F.normalize(output)
        return F.cross_entropy(features @ features.T * 100, torch.arange(len(output)).roll(1))

    result = result_of("InitialLoss", net(), loss=contrastive)
    assert (result.status, result.message) == (
        "skip",
        "the loss compares samples with each other, and its scale is a temperature",
    )


def test_a_difference_that_compares_each_sample_with_each_fails():
    inputs, target = batch()[0], torch.randn(12)
    result = result_of(
        "LabelsFitHead", net(outputs=1), (inputs, target), lambda output, wanted: (output - wanted).square().mean()
    )
    assert result.status == "fail" and "(12, 1) and (12,), compares each sample with each" in result.message
    loss = lambda output, wanted: (output - wanted[:, None]).square().mean()  # noqa: E731
    assert result_of("LabelsFitHead", net(outputs=1), (inputs, target), loss).status == "skip"
