"""A lookout notes norms whose parameters are frozen and whose running statistics move; it reads no number."""

import pytest
import torch
from torch import nn

from lightning_hooks import assert_no_hooks
from tests.callbacks.models import Net
from tests.engine.lookouts.loops import in_loop, in_trainer

RULE = "FrozenNormMoves"


class Tuned(nn.Module):
    """A frozen body with a norm, and a head."""

    def __init__(self, norm=None, body="body"):
        super().__init__()
        torch.manual_seed(0)
        self.add_module(body, nn.Sequential(nn.Linear(4, 8), norm or nn.BatchNorm1d(8), nn.ReLU()).requires_grad_(False))
        self.name = body
        self.head = nn.Linear(8, 1)

    @property
    def part(self):
        return getattr(self, self.name)

    def loss(self):
        return self.head(self.part(torch.randn(16, 4))).square().mean()


def said(model, before=lambda model, step: None, after=lambda model, step: None, steps=30, every=None):
    optimizer = torch.optim.Adam([each for each in model.parameters() if each.requires_grad] if every is None else every, 1e-3)

    def loop(watched, step):
        before(model, step)
        optimizer.zero_grad()
        model.loss().backward()
        optimizer.step()
        after(model, step)

    found = in_loop(model, optimizer, loop, [RULE], steps)
    assert_no_hooks(model)
    return found


def test_a_frozen_norm_in_training_mode_is_a_note():
    finding = said(Tuned())[RULE]
    assert (finding.rows, finding.first_step, finding.severity) == (("body.1",), 4, "info")
    assert finding.message == (
        "body.1: the parameters of this norm are frozen, but it is in training mode and each batch moves its running "
        "statistics."
    )


def test_an_optimizer_that_holds_the_frozen_part_changes_nothing():
    model = Tuned()
    assert said(model, every=list(model.parameters()))[RULE].rows == ("body.1",)


def test_a_frozen_norm_that_was_in_evaluation_mode_before_is_a_warning():
    finding = said(Tuned(), lambda model, step: model.train(step >= 6))[RULE]
    assert (finding.rows, finding.first_step, finding.severity) == (("body.1",), 8, "warning")
    assert finding.message == (
        "body.1: the parameters of this norm are frozen, and it was in evaluation mode at step 5, but is in training mode "
        "since, so that each batch moves its running statistics."
    )


def test_a_norm_without_parameters_is_as_frozen_as_what_holds_it():
    assert said(Tuned(nn.BatchNorm1d(8, affine=False)))[RULE].rows == ("body.1",)


def test_a_finding_ends_when_the_norm_is_put_into_evaluation_mode():
    finding = said(Tuned(), lambda model, step: model.part.train(step < 8), steps=60)[RULE]
    assert finding.is_over is not None


def follow(model, step):
    with torch.no_grad():
        for each in model.part.parameters():
            each.mul_(0.999)


@pytest.mark.parametrize(
    ("model", "before", "after"),
    [
        (Tuned(), lambda model, step: model.part.eval(), lambda model, step: None),
        (Tuned(nn.BatchNorm1d(8, track_running_stats=False)), lambda model, step: None, lambda model, step: None),
        (Tuned(nn.LayerNorm(8)), lambda model, step: None, lambda model, step: None),
        (Tuned(), lambda model, step: model.part[1].requires_grad_(True), lambda model, step: None),
        (Tuned(), lambda model, step: None, follow),
        (Tuned(body="target"), lambda model, step: None, lambda model, step: follow(model, step) if step % 6 == 0 else None),
    ],
    ids=["evaluates", "without statistics", "layer norm", "trains its norms", "averaged copy", "target network"],
)
def test_what_is_done_on_purpose_is_no_finding(model, before, after):
    assert said(model, before, after) == {}


class Adversary(nn.Module):
    """A generator and a discriminator with a norm, which is frozen while the generator trains."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.generator = nn.Linear(4, 4)
        self.discriminator = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))


@pytest.mark.parametrize("every", [1, 5])
def test_a_discriminator_that_is_frozen_for_a_while_is_no_finding(every):
    model = Adversary()
    optimizers = [torch.optim.SGD(each.parameters(), 0.01) for each in (model.generator, model.discriminator)]

    def loop(watched, step):
        model.discriminator.requires_grad_(True)
        if step % every == 0:
            optimizers[1].zero_grad()
            model.discriminator(model.generator(torch.randn(8, 4)).detach()).mean().backward()
        optimizers[1].step()
        model.discriminator.requires_grad_(False)
        optimizers[0].zero_grad()
        (-model.discriminator(model.generator(torch.randn(8, 4))).mean()).backward()
        optimizers[0].step()

    assert in_loop(model, optimizers, loop, [RULE]) == {}


class FrozenBody(Net):
    """Trains the head of a network with a norm."""

    def __init__(self, mode):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
        self.body[:2].requires_grad_(False).train(mode)


def test_a_trainer_is_looked_at_too(tmp_path):
    batches = [(torch.randn(4, 6), torch.randn(4, 3)) for _ in range(8)]
    assert in_trainer(tmp_path, FrozenBody(True), batches, [RULE])[RULE].rows == ("body.1",)
    assert in_trainer(tmp_path, FrozenBody(False), batches, [RULE]) == {}
