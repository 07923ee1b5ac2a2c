"""A lookout finds what stands in front of a loss of classes, and is silent where that is what the loss takes."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lightning_hooks import assert_no_hooks
from tests.callbacks.models import Net
from tests.engine.lookouts.loops import in_loop, in_trainer

RULE = "ActivationBeforeLoss"


def said(loss):
    """What is said of a loss: called with logits [8, 5], labels [8] and probabilities [8, 5]."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 5))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def loop(watched, step):
        optimizer.zero_grad()
        loss(model(torch.randn(8, 4)), torch.randint(0, 5, (8,)), torch.randn(8, 5).softmax(-1)).backward()
        optimizer.step()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = in_loop(model, optimizer, loop, [RULE], steps=6)
    assert_no_hooks(model)
    return found


def distillation(out, y, p):
    return 0.9 * F.kl_div((out / 2).softmax(-1), p, reduction="batchmean") * 4 + 0.1 * F.cross_entropy(out, y)


def focal(out, y, p):
    entropy = F.cross_entropy(out.softmax(-1), y, reduction="none")
    return ((1 - (-entropy).exp()) ** 2 * entropy).mean()


def sequence(out, y, p):
    return F.cross_entropy(out.softmax(-1).view(2, 4, 5).transpose(1, 2), y.view(2, 4))


TWICE = "A softmax stands in front of `cross_entropy`, which applies a softmax itself."
FAULTY = {
    "softmax": (lambda out, y, p: F.cross_entropy(out.softmax(-1), y), TWICE),
    "softmax of float16": (lambda out, y, p: F.cross_entropy(out.softmax(-1).half().float(), y), TWICE),
    "softmax, smoothed": (lambda out, y, p: F.cross_entropy(out.softmax(-1), y, label_smoothing=0.1), TWICE),
    "softmax, a term": (lambda out, y, p: 0.5 * F.cross_entropy(out.softmax(-1), y) + out.square().mean(), TWICE),
    "focal": (focal, TWICE),
    "sequence": (sequence, TWICE),
    "softmax, picked": (
        lambda out, y, p: -out.softmax(-1).log_softmax(-1).gather(1, y[:, None]).mean(),
        "A softmax stands in front of `log_softmax`, which applies a softmax itself.",
    ),
    "softmax, soft labels": (
        lambda out, y, p: F.cross_entropy(out.softmax(-1), p),
        "A softmax stands in front of `log_softmax`, which applies a softmax itself.",
    ),
    "sigmoid": (
        lambda out, y, p: F.cross_entropy(out.sigmoid(), y),
        "A sigmoid stands in front of `cross_entropy`, which applies a softmax itself.",
    ),
    "binary": (
        lambda out, y, p: F.binary_cross_entropy_with_logits(out.sigmoid(), p),
        "A sigmoid stands in front of `binary_cross_entropy_with_logits`, which applies a sigmoid itself.",
    ),
    "nll of probabilities": (
        lambda out, y, p: F.nll_loss(out.softmax(-1), y),
        "A softmax stands in front of `nll_loss`, which takes logarithms of probabilities.",
    ),
    "nll of logits": (
        lambda out, y, p: F.nll_loss(out, y),
        "`nll_loss` gets the output of a layer as it is, and takes logarithms of probabilities.",
    ),
    "over the batch": (
        lambda out, y, p: F.nll_loss(out.log_softmax(0), y),
        "The softmax of the loss goes over dimension 0, and `nll_loss` picks the class of each label along dimension 1.",
    ),
    "distillation": (
        distillation,
        "A softmax stands in front of `kl_div`, which takes logarithms of probabilities first.",
    ),
    "mean of a divergence": (
        lambda out, y, p: F.kl_div(out.softmax(-1), p),
        "A softmax stands in front of `kl_div`, which takes logarithms of probabilities first.",
    ),
}


@pytest.mark.parametrize(("loss", "message"), FAULTY.values(), ids=FAULTY)
def test_what_stands_in_front_of_a_loss_is_named(loss, message):
    finding = said(loss)[RULE]
    assert (finding.rows, finding.first_step, finding.severity, finding.message) == (("",), 0, "warning", message)


NOTES = {
    "rectifier": (
        lambda out, y, p: F.cross_entropy(out.relu(), y),
        "A ReLU stands in front of `cross_entropy`, so that no logit can be below 0.",
    ),
    "over the batch, picked": (
        lambda out, y, p: -out.log_softmax(0).gather(-1, y[:, None]).mean(),
        "The softmax of the loss goes over dimension 0, and `gather` picks the class of each label along dimension 1.",
    ),
    "tanh": (
        lambda out, y, p: F.cross_entropy(out.tanh(), y),
        "A tanh stands in front of `cross_entropy`, so that no logit can be above 1.",
    ),
}


@pytest.mark.parametrize(("loss", "message"), NOTES.values(), ids=NOTES)
def test_what_limits_logits_is_a_note(loss, message):
    finding = said(loss)[RULE]
    assert (finding.severity, finding.message) == ("info", message)


def reinforced(out, y, p):
    chosen = torch.distributions.Categorical(logits=out)
    return -(chosen.log_prob(y) * p[:, 0]).mean() - 0.01 * chosen.entropy().mean()


def mixture(out, y, p):
    return F.nll_loss((0.5 * out.softmax(-1) + 0.5 * out.roll(1, 0).softmax(-1)).log(), y)


SOUND = {
    "logits": lambda out, y, p: F.cross_entropy(out, y),
    "soft labels": lambda out, y, p: F.cross_entropy(out, p),
    "picked": lambda out, y, p: -out.log_softmax(-1).gather(1, y[:, None]).mean(),
    "log-probabilities of a sequence": lambda out, y, p: F.nll_loss(
        out.view(2, 4, 5).log_softmax(-1).transpose(1, 2), y.view(2, 4)
    ),
    "temperature": lambda out, y, p: F.cross_entropy(out / 0.1, y),
    "clipped logits": lambda out, y, p: F.cross_entropy(10 * out.tanh(), y),
    "log-probabilities": lambda out, y, p: F.nll_loss(out.log_softmax(-1), y),
    "logarithm": lambda out, y, p: F.nll_loss((out.softmax(-1) + 1e-8).log(), y),
    "mixture": mixture,
    "weighed": lambda out, y, p: F.nll_loss((1 - out.softmax(-1)) ** 2 * out.log_softmax(-1), y),
    "binary": lambda out, y, p: F.binary_cross_entropy(out.sigmoid(), p),
    "binary logits": lambda out, y, p: F.binary_cross_entropy_with_logits(out, p),
    "divergence": lambda out, y, p: F.kl_div(out.log_softmax(-1), p, reduction="batchmean"),
    "divergence of logarithms": lambda out, y, p: F.kl_div(out.log_softmax(-1), p.log(), log_target=True),
    "squared error of probabilities": lambda out, y, p: (p - out.softmax(-1)).square().mean(),
    "Brier score by parts": lambda out, y, p: (p - 2 * out.softmax(-1)).square().mean(),
    "overlap": lambda out, y, p: 1 - 2 * (out.sigmoid() * p).sum() / (out.sigmoid().sum() + p.sum()),
    "attention": lambda out, y, p: F.cross_entropy(out.softmax(-1) @ torch.randn(5, 5), y),
    "expected value": lambda out, y, p: -(out.softmax(-1) * p).sum(-1).mean(),
    "policy": reinforced,
}


@pytest.mark.parametrize("loss", SOUND.values(), ids=SOUND)
def test_what_a_loss_is_made_for_is_not_told(loss):
    assert said(loss) == {}


class Twice(Net):
    """Gives probabilities to a cross entropy."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        return F.cross_entropy(self(x).softmax(-1), y.argmax(-1))


def test_a_trainer_is_looked_at_too(tmp_path):
    batches = [(torch.randn(4, 6), torch.randn(4, 3)) for _ in range(8)]
    assert in_trainer(tmp_path, Twice(), batches, [RULE])[RULE].severity == "warning"
    assert in_trainer(tmp_path, Net(), batches, [RULE]) == {}
