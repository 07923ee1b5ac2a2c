"""AccumulationNotDivided compares the gradients of parts of a batch, added up, with those of the whole."""

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from lightning_hooks import check
from lightning_hooks.errors import RuleError
from tests.checks._training import batch, net, result_of

NAME = "AccumulationNotDivided"


def by(loss):
    """The step of a loop on the batches of `batch`."""
    return lambda model, given: loss(model(given[0]), given[1])


def said(step, model=None, samples=12, count=4, **options):
    model = net() if model is None else model
    return result_of(NAME, model, batch(samples), None, step=step, accumulate=count, **options)


def test_a_mean_that_is_not_divided_is_a_warning():
    result = said(by(functional.cross_entropy))
    assert result.status == "warn" and result.measured == pytest.approx(4)
    assert result.message == (
        "the gradients of 4 batches, added up, are 4 times those of the same samples as one batch, because nothing divides "
        "their losses by 4"
    )
    assert result.next_steps == ("Divide each loss by the number of batches that are accumulated, once.",)


@pytest.mark.parametrize(
    "step",
    [
        by(lambda output, labels: functional.cross_entropy(output, labels) / 4),
        by(lambda output, labels: 0.25 * functional.cross_entropy(output, labels)),
        by(lambda output, labels: functional.cross_entropy(output, labels, reduction="sum")),
    ],
    ids=["divided", "multiplied", "a sum"],
)
def test_what_adds_up_to_one_batch_passes(step):
    result = said(step)
    assert (result.status, result.message) == (
        "pass",
        "the gradients of 4 batches, added up, are those of the same samples as one batch",
    )


def test_dropout_and_batch_norms_make_no_difference():
    model = net(nn.BatchNorm1d(3), nn.Dropout(0.5))
    assert said(by(lambda output, labels: functional.cross_entropy(output, labels) / 4), model).status == "pass"


def test_a_mean_over_a_number_of_elements_that_varies_is_a_warning_of_its_own():
    step = by(lambda output, labels: functional.cross_entropy(output, labels, ignore_index=0) / 4)
    chance = torch.Generator().manual_seed(2)
    given = torch.randn(12, 4, generator=chance), torch.tensor([0, 0, 1, 1, 2, 1, 0, 2, 2, 1, 2, 2])
    result = result_of(NAME, net(), given, None, step=step, accumulate=4)
    assert result.status == "warn" and 0.05 < result.measured < 1
    assert " are not a multiple of those of the same samples as one batch: " in result.message
    assert result.next_steps[0].startswith("If the loss is a mean over a number of elements that varies")


def test_an_optimizer_that_divides_by_the_size_makes_the_same_steps():
    model = net()
    result = said(by(functional.cross_entropy), model, optimizer=torch.optim.AdamW(model.parameters()))
    assert result.status == "pass" and result.message.endswith(", which AdamW divides by their size")


@pytest.mark.parametrize(
    ("step", "options", "status", "message"),
    [
        (by(functional.cross_entropy), {"count": 1}, "pass", "each batch is a step of its own"),
        (by(functional.cross_entropy), {"samples": 3}, "skip", "the batch has 3 samples, and 4 batches are accumulated"),
        (
            lambda model, given: functional.cross_entropy(model(given[0] + torch.randn(len(given[0]), 4)), given[1]),
            {},
            "skip",
            "the step draws random numbers (randn)",
        ),
        (by(lambda output, labels: 0 * output.sum()), {}, "skip", "all gradients are 0"),
    ],
    ids=["alone", "few", "random", "zero"],
)
def test_what_cannot_be_compared_says_why(step, options, status, message):
    result = said(step, **options)
    assert result.status == status and message in result.message


class Module(LightningModule):
    """Divides its loss by a number, and has another optimizer loop if it is manual."""

    def __init__(self, divisor=1, reduction="mean", is_manual=False):
        super().__init__()
        self.net, self.divisor, self.reduction = net(), divisor, reduction
        self.automatic_optimization = not is_manual

    def training_step(self, given, batch_idx):
        loss = functional.cross_entropy(self.net(given[0]), given[1], reduction=self.reduction) / self.divisor
        if not self.automatic_optimization:
            self.manual_backward(loss)
            self.optimizers().step()
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        ({}, "pass", "are those of the same samples as one batch"),
        (
            {"divisor": 4},
            "warn",
            "0.25 times those of the same samples as one batch, because the step divides its loss by 4, and",
        ),
        ({"reduction": "sum"}, "warn", "because the loss is a sum over samples, which the Trainer divides by 4"),
        ({"is_manual": True}, "skip", "in manual optimization it is not known how many batches are accumulated"),
    ],
    ids=["divided by the Trainer", "divided twice", "a sum", "by hand"],
)
def test_a_trainer_divides_by_itself(tmp_path, options, status, message):
    count = {} if options.get("is_manual") else {"accumulate_grad_batches": 4}
    trainer = Trainer(max_steps=1, accelerator="cpu", logger=False, default_root_dir=tmp_path, **count)
    result = check(trainer, Module(**options), DataLoader(TensorDataset(*batch()), 12), checks=[NAME])[NAME]
    assert result.status == status and message in result.message


@pytest.mark.parametrize("count", [0, True, 2.0, "4"])
def test_a_number_of_batches_that_is_none_is_refused(count):
    with pytest.raises(RuleError, match="accumulate must be a number of batches from 1 on"):
        said(by(functional.cross_entropy), count=count)


def test_a_trainer_knows_the_number(tmp_path):
    trainer = Trainer(max_steps=1, accelerator="cpu", logger=False, default_root_dir=tmp_path)
    with pytest.raises(RuleError, match="its accumulate_grad_batches counts"):
        check(trainer, Module(), DataLoader(TensorDataset(*batch()), 12), accumulate=4)
