import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lightning_hooks import check
from tests.checks._training import batch, net, result_of

NAME = "InputsMatter"


class Two(nn.Module):
    def __init__(self, change):
        super().__init__()
        self.net, self.change = net(), change

    def forward(self, x, more):
        return self.net(self.change(x, more))


def both(change):
    inputs, labels = batch()
    return result_of(NAME, Two(change), ((inputs, inputs.flip(0)), labels))


def test_an_input_that_is_read_without_influence_fails():
    result = both(lambda x, more: x + 0 * more)
    assert (result.status, result.rows) == ("fail", ("batch[0][1]",))
    assert both(lambda x, more: x + more).message == "the loss depends on 3 tensors of the batch"


def test_an_input_that_nothing_uses_is_named_and_passes_unless_the_model_gets_it():
    assert both(lambda x, more: x).rows == ("batch[0][1]",)
    model, given = net(), {"x": batch()[0], "y": batch()[1], "weight": torch.ones(12)}

    def step(module, given):
        return F.cross_entropy(module(given["x"]), given["y"])

    result = check(model, given, step=step, checks=[NAME])[NAME]
    assert (result.status, result.message) == ("pass", "the loss depends on 2 tensors of the batch; not used: batch['weight']")


def test_influence_without_a_gradient_counts():
    assert both(lambda x, more: x * (more > 0)).status == "pass"


def test_features_without_influence_are_named():
    class Sliced(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3))

        def forward(self, x):
            return self.net(x[:, 1:3])

    result = result_of(NAME, Sliced())
    assert (result.status, result.rows, result.measured) == ("fail", ("batch[0]",), 2)
    assert result.message == "batch[0]: the loss does not depend on features 0, 3 of it"


def test_a_part_of_a_mask_without_influence_is_a_warning():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3))

        def forward(self, x, mask):
            return self.net((x * mask)[:, 2:]) + x.sum(1, keepdim=True)

    inputs, labels = batch()
    result = result_of(NAME, Masked(), ((inputs, torch.ones(12, 4)), labels))
    assert (result.status, result.rows) == ("warn", ("batch[0][1]",)) and "features 0, 1 of it" in result.message
    result = result_of(NAME, Masked(), ((inputs, 0.5 * torch.ones(12, 4)), labels))
    assert (result.status, result.rows) == ("fail", ("batch[0][1]",))


class Padded(nn.Module):
    """Reads positions of which each sample may leave some out; the last ones are never read if `used` is below 4."""

    def __init__(self, used=4):
        super().__init__()
        self.net, self.used = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), used

    def counts(self, mask):
        return mask

    def forward(self, x, mask):
        counts = self.counts(mask)
        return self.net(torch.where(counts & (torch.arange(4) < self.used), x, 0))


class Ignoring(Padded):
    def counts(self, mask):
        return ~mask


class Scored(Padded):
    def counts(self, mask):
        return mask.softmax(1) > 0


class Long(Padded):
    def counts(self, mask):
        return torch.arange(4) < mask[:, None]


VALID = (torch.arange(4) < 2).repeat(12, 1)
SCORES = torch.zeros(12, 4).masked_fill(~VALID, -torch.inf)


@pytest.mark.parametrize(
    ("kind", "mask"),
    [(Padded, VALID), (Ignoring, ~VALID), (Scored, SCORES), (Long, torch.tensor([1, 2] * 6))],
    ids=["counts", "ignores", "is added", "lengths"],
)
def test_positions_that_a_mask_hides_are_no_fault(kind, mask):
    inputs, labels = batch()
    result = result_of(NAME, kind(), ((inputs, mask), labels))
    assert result.status != "fail" and "batch[0][0]" not in result.rows
    result = result_of(NAME, kind(used=3), ((inputs, mask), labels))
    assert (result.status, result.rows) == ("fail", ("batch[0][0]",)) and "feature 3 of it" in result.message


def test_a_tensor_that_a_mask_hides_as_a_whole_is_named_and_no_fault():
    class Either(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net()

        def forward(self, x, more, has_more):
            return self.net(x) + torch.where(has_more[:, None], self.net(more), 0)

    inputs, labels = batch()
    more = inputs.flip(0).contiguous()
    result = result_of(NAME, Either(), ((inputs, more, torch.zeros(12, dtype=torch.bool)), labels))
    assert result.status == "pass" and "batch[0][2] hides 1 part of it in this batch" in result.message


def test_what_a_library_leaves_out_is_a_warning(monkeypatch):
    monkeypatch.setattr("lightning_hooks.checks.catalogue.inputs.is_of_library", lambda module: isinstance(module, Two))
    assert both(lambda x, more: x + 0 * more).status == "warn"
    assert both(lambda x, more: x[:, 1:2] + more).status == "warn"


def test_channels_of_images_are_features():
    class First(nn.Conv2d):
        def forward(self, x):
            return super().forward(x[:, :2]).mean((2, 3))

    images = torch.randn(6, 3, 5, 5)
    result = result_of(NAME, First(2, 3, 3), (images, torch.arange(6) % 3))
    assert result.message == "batch[0]: the loss does not depend on feature 2 of it"


def test_a_loss_that_ignores_its_labels_fails_and_a_head_of_zeros_does_not():
    result = result_of(NAME, net(), loss=lambda output, target: output.square().mean() + 0 * target.sum())
    assert (result.status, result.rows) == ("fail", ("batch[1]",))
    model = net()
    nn.init.zeros_(model[2].weight)
    assert result_of(NAME, model).status == "pass"


def test_a_loss_whose_gradients_do_not_depend_on_the_batch_fails():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.scale = net().requires_grad_(False), nn.Parameter(torch.ones(()))

        def forward(self, x):
            return self.net(x)

    model = Scaled()

    def step(module, given):
        return F.cross_entropy(module(given[0]), given[1]).detach() + module.scale**2

    report = check(model, batch(), step=step, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), checks=[NAME])
    assert report[NAME].status == "fail" and "no gradient of a trainable parameter does" in report[NAME].message


def test_labels_of_outputs_that_are_all_alike_have_an_influence():
    class Constant(nn.Module):
        def __init__(self):
            super().__init__()
            self.bias = nn.Parameter(torch.zeros(3))

        def forward(self, x):
            return self.bias.expand(len(x), 3)

    # To exchange the labels of two samples with one output changes nothing.
    assert result_of(NAME, Constant()).rows == ("batch[0]",)
