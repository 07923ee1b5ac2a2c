"""A lookout notes gradients that the loss of another optimizer has left in the parameters of the one that steps."""

import pytest
import torch
from torch import nn

from lightning_hooks import assert_no_hooks
from tests.callbacks.models import Gan
from tests.engine.lookouts.loops import in_loop, in_trainer


class Pair(nn.Module):
    """A generator, through whose loss gradients reach a discriminator; each has an optimizer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.gen, self.disc = nn.Linear(2, 3), nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        self.optimizers = [torch.optim.Adam(each.parameters(), 0.01) for each in (self.gen, self.disc)]

    def gen_loss(self):
        return -self.disc(self.gen(torch.randn(8, 2))).mean()

    def disc_loss(self):
        fake, real = self.gen(torch.randn(8, 2)).detach(), torch.randn(8, 3)
        return self.disc(fake).mean() - self.disc(real).mean() + self.disc(real).square().mean()


def said(loop, steps=30, rules=("GradientsOfAnotherLoss",)):
    model = Pair()
    found = in_loop(model, model.optimizers, lambda watched, step: loop(model, *model.optimizers, step), rules, steps)
    assert_no_hooks(model)
    return found


def cleared_together(model, gen, disc, step):
    gen.zero_grad()
    disc.zero_grad()
    model.gen_loss().backward()
    gen.step()
    model.disc_loss().backward()
    disc.step()


def cleared_after_each_step(model, gen, disc, step):
    model.disc_loss().backward()
    disc.step()
    disc.zero_grad()
    model.gen_loss().backward()
    gen.step()
    gen.zero_grad()


def test_a_discriminator_that_steps_with_the_gradients_of_the_generator_is_named():
    finding = said(cleared_together)["GradientsOfAnotherLoss"]
    assert (finding.rows, finding.severity) == (("disc.0.weight",), "warning")
    assert finding.message == (
        "disc.0.weight: optimizer 1 (Adam) steps with gradients that the backward pass for optimizer 0 (Adam) has left, added "
        "to those of its own loss, at 29 of 29 steps (tests/engine/lookouts/test_leftovers.py:42 in cleared_together)."
    )


@pytest.mark.parametrize("every", [1, 3])
def test_clearing_after_the_own_step_is_too_early(every):
    def loop(model, gen, disc, step):
        for _ in range(every):
            model.disc_loss().backward()
            disc.step()
            disc.zero_grad()
        model.gen_loss().backward()
        gen.step()
        gen.zero_grad()

    assert said(loop)["GradientsOfAnotherLoss"].rows == ("disc.0.weight",)


def cleared_before_each_loss(model, gen, disc, step):
    gen.zero_grad()
    model.gen_loss().backward()
    gen.step()
    disc.zero_grad(set_to_none=step % 2 == 0)
    model.disc_loss().backward()
    disc.step()


def frozen_for_the_other(model, gen, disc, step):
    gen.zero_grad()
    disc.zero_grad()
    model.disc.requires_grad_(False)
    model.gen_loss().backward()
    gen.step()
    model.disc.requires_grad_(True)
    model.disc_loss().backward()
    disc.step()


def accumulated(model, gen, disc, step):
    for _ in range(3):
        (model.gen_loss() + model.disc_loss()).backward()
    for each in (gen, disc):
        each.step()
        each.zero_grad()


def stepped_less_often(model, gen, disc, step):
    model.gen_loss().backward()
    gen.step()
    gen.zero_grad()
    if step % 3 == 2:
        disc.step()
        disc.zero_grad()


def several_losses_before_both_steps(model, gen, disc, step):
    model.gen_loss().backward()
    model.disc_loss().backward()
    for each in (gen, disc):
        each.step()
        each.zero_grad()


def a_head_on_a_common_body(model, body, head, step):
    """The optimizer of the head steps first, and the body adds up two losses on purpose."""
    body.zero_grad()
    head.zero_grad()
    model.gen_loss().backward()
    head.step()
    model.gen(torch.randn(8, 2)).square().mean().backward()
    body.step()


def surgery(model, gen, disc, step):
    cleared_before_each_loss(model, gen, disc, step)
    model.gen_loss().backward()
    for parameter in model.disc.parameters():
        parameter.grad = torch.zeros_like(parameter)
    gen.step()


LOOPS = [
    *(cleared_before_each_loss, frozen_for_the_other, accumulated, stepped_less_often),
    *(several_losses_before_both_steps, a_head_on_a_common_body, surgery),
]


@pytest.mark.parametrize("loop", LOOPS)
def test_gradients_that_are_cleared_or_added_on_purpose_are_no_finding(loop):
    assert said(loop) == {}


def test_gradients_that_are_never_cleared_have_another_rule():
    def loop(model, gen, disc, step):
        gen.zero_grad()
        model.gen_loss().backward()
        gen.step()
        model.disc_loss().backward()
        disc.step()

    assert {*said(loop, rules=("GradientsOfAnotherLoss", "GradientsKept"))} == {"GradientsKept"}


class Early(Gan):
    """Clears both before the loss of the generator, which leaves gradients in the discriminator."""

    def training_step(self, batch, batch_idx):
        first, second = self.optimizers()
        first.zero_grad()
        second.zero_grad()
        self.manual_backward(-self.disc(self.gen(batch[0][:, :2])).mean())
        first.step()
        self.manual_backward(self.disc(batch[0]).square().mean())
        second.step()


def test_a_trainer_with_manual_optimization_is_looked_at_too(tmp_path):
    batches = [(torch.randn(4, 6), torch.randn(4, 3)) for _ in range(8)]
    found = in_trainer(tmp_path, Early(), batches, ["GradientsOfAnotherLoss"])["GradientsOfAnotherLoss"]
    assert found.rows == ("disc.weight",)
    assert found.message.endswith("in training_step).")
    assert in_trainer(tmp_path, Gan(), batches, ["GradientsOfAnotherLoss"]) == {}
    assert in_trainer(tmp_path, Gan(every=2), batches, ["GradientsOfAnotherLoss"]) == {}
