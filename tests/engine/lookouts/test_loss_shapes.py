"""A lookout finds [n, 1] beside [n] in the graph of a loss, and is silent where pairs are compared on purpose."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from lightning_hooks import assert_no_hooks
from tests.callbacks.models import Net
from tests.engine.lookouts.loops import in_loop, in_trainer

N = 8
RULE = "LabelsFitHead"
UNKNOWN = "a tensor of another shape"


def said(loss, outputs=1, notes=False, steps=6):
    """What is said of a loss of predictions and targets [8].

    Args:
        loss: called with predictions [8, outputs], targets [8] and the model.
        outputs: of the model.
        notes: whether the loop notes the loss.
        steps: how many.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, N), nn.Tanh(), nn.Linear(N, outputs))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def loop(watched, step):
        optimizer.zero_grad()
        value = loss(model(torch.randn(N, 4)), torch.randn(N), model)
        if notes:
            watched.note_loss(value)
        value.backward()
        optimizer.step()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = in_loop(model, optimizer, loop, [RULE], steps=steps)
    assert_no_hooks(model)
    return found


def clipped(ratio, advantages):
    return -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()


FAULTY = {
    "difference": (lambda out, y, model: ((out - y) ** 2).mean(), "a difference", "[8, 1]", UNKNOWN),
    "difference turned": (lambda out, y, model: (y - out).abs().mean(), "a difference", "[8, 1]", UNKNOWN),
    "squeezed": (lambda out, y, model: (out.squeeze(-1) - y[:, None]).square().sum(), "a difference", "[8]", UNKNOWN),
    "functional": (lambda out, y, model: F.mse_loss(out, y), "a squared error", "[8, 1]", UNKNOWN),
    "absolute": (lambda out, y, model: F.l1_loss(out, y), "a difference", "[8, 1]", UNKNOWN),
    "smooth": (lambda out, y, model: F.smooth_l1_loss(out, y), "an error", "[8, 1]", UNKNOWN),
    "product": (lambda out, y, model: clipped(out.squeeze(-1).exp(), y[:, None]), "a product", "[8]", "[8, 1]"),
    "a term of several": (
        lambda out, y, model: 0.5 * (out - y).square().mean() + 0.01 * out.square().mean() - 0.1 * out.mean(),
        *("a difference", "[8, 1]", UNKNOWN),
    ),
    "accumulated": (lambda out, y, model: (out - y).square().mean() / 4, "a difference", "[8, 1]", UNKNOWN),
    "images": (
        lambda out, y, model: F.mse_loss(out.view(N, 1, 1, 1).expand(N, 1, 3, 3) * 2, y.view(N, 1, 1).expand(N, 3, 3)),
        *("a squared error", "[8, 1, 3, 3]", UNKNOWN),
    ),
    "in both": (lambda out, y, model: (out - model(torch.ones(N, 4))[:, 0]).abs().mean(), "a difference", "[8, 1]", "[8]"),
}  # fmt: skip


@pytest.mark.parametrize(("loss", "what", "side", "other"), FAULTY.values(), ids=FAULTY)
def test_shapes_that_do_not_fit_are_named(loss, what, side, other):
    finding = said(loss)[RULE]
    whole = "[8, 8, 3, 3]" if side.endswith("3, 3]") else "[8, 8]"
    assert (finding.rows, finding.first_step, finding.severity) == (("",), 0, "warning")
    assert finding.message == (
        f"{what.capitalize()} in the loss has the shape {whole}, because {side} meets {other}: each sample is compared with "
        "all others."
    )


def test_a_loss_that_the_loop_notes_is_looked_at_too():
    assert RULE in said(lambda out, y, model: (out - y).square().mean(), notes=True)


def pairs(out, y, model):
    scores = out.squeeze(-1)
    return F.relu(1 - (scores[:, None] - scores[None, :])).mean()


def contrastive(out, y, model):
    features = F.normalize(out, dim=-1)
    return F.cross_entropy(features @ features.T / 0.1, torch.arange(N))


def distances(out, y, model):
    square = out.square().sum(-1)
    return F.relu(1 - (square[:, None] + square - 2 * out @ out.T)).mean()


def attention(out, y, model):
    mask = torch.ones(N, N).tril().log()
    return ((out @ out.T + mask).softmax(-1) @ out - y[:, None]).square().mean()


def hazards(out, y, model):
    risk = out.squeeze(-1)
    return (torch.logsumexp(risk + (y[:, None] <= y[None]).float().log(), dim=1) - risk).mean()


def kernel(out, y, model):
    return (-((out - y[None]) ** 2)).exp().mean()


ON_PURPOSE = {
    "the same shape": (lambda out, y, model: (out.squeeze(-1) - y).square().mean(), 1),
    "the same column": (lambda out, y, model: F.mse_loss(out, y[:, None]), 1),
    "all pairs": (pairs, 1),
    "pairs of a column and what is flat": (lambda out, y, model: (out[:, 0].unsqueeze(1) - out[:, 0]).abs().mean(), 1),
    "pairs by reshape": (lambda out, y, model: (out.view(-1, 1) - y.view(1, -1)).abs().mean(), 1),
    "contrastive": (contrastive, 4),
    "distances": (distances, 4),
    "attention": (attention, 4),
    "hazards": (hazards, 1),
    "kernel": (kernel, 1),
    "as many outputs as samples": (lambda out, y, model: (out - y[:, None]).square().mean(), N),
    "as many outputs as samples, scaled": (lambda out, y, model: (out * torch.ones(N)).square().mean(), N),
    "centred": (lambda out, y, model: (out - out.mean(1, keepdim=True)).square().mean(), N),
    "a weight of each column": (lambda out, y, model: (torch.randn(N, N) - model[0].bias).square().mean() + out.mean(), 1),
    "a mean over samples": (lambda out, y, model: (torch.randn(N, N) - out.mean(0)).square().mean(), N),
    "masked": (lambda out, y, model: (out.squeeze(-1) * torch.ones(N, N).tril()).sum(), 1),
    "one sample": (lambda out, y, model: (out[:1] - y[:1]).square().mean(), 1),
    "checkpointed": (
        lambda out, y, model: checkpoint(lambda x: (x.squeeze(-1) * y).square().mean(), out, use_reentrant=False),
        1,
    ),
}


@pytest.mark.parametrize(("loss", "outputs"), ON_PURPOSE.values(), ids=ON_PURPOSE)
def test_what_is_compared_on_purpose_is_not_told(loss, outputs):
    assert said(loss, outputs) == {}


class Broadcasting(Net):
    """Compares [4, 1] with [4]."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        return (self(x)[:, :1] - y[:, 0]).square().mean()


def test_a_trainer_is_looked_at_too(tmp_path):
    batches = [(torch.randn(4, 6), torch.randn(4, 3)) for _ in range(8)]
    assert in_trainer(tmp_path, Broadcasting(), batches, [RULE])[RULE].rows == ("",)
    assert in_trainer(tmp_path, Broadcasting(), batches, [RULE], accumulate_grad_batches=2)[RULE].first_step == 0
    assert in_trainer(tmp_path, Net(), batches, [RULE]) == {}
