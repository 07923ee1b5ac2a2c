"""A lookout notes batches of one number and columns of the data that are constant or far from the others in scale."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from lightning_hooks import assert_no_hooks
from lightning_hooks.engine.lookouts.columns import Columns, measured
from lightning_hooks.engine.lookouts.empty_batches import EmptyBatches
from tests.callbacks.models import Net
from tests.engine.lookouts.loops import in_loop, in_trainer

RULES = ["BatchOfZeros", "InputColumnZero", "InputColumnConstant", "InputColumnScale"]


def said(model, given, steps=30, call=None):
    """What is said of a plain loop on `given(step)`: {rule: (severity, message)}."""
    optimizer = torch.optim.SGD(model.parameters(), 1e-12)

    def loop(watched, step):
        optimizer.zero_grad()
        output = model(given(step)) if call is None else call(model, given(step))
        output.square().mean().backward()
        optimizer.step()

    findings = in_loop(model, optimizer, loop, RULES, steps)
    assert_no_hooks(model)
    return {name: (each.severity, each.message) for name, each in findings.items()}


def normal(step, columns=6, samples=32):
    return torch.randn(samples, columns, generator=torch.Generator().manual_seed(step))


def with_column(column, value, make=normal):
    """Batches with another number in a column."""

    def given(step):
        batch = make(step)
        batch[:, column] = value
        return batch

    return given


def ids(step):
    return torch.randint(1, 9, (32, 6), generator=torch.Generator().manual_seed(step))


@pytest.mark.parametrize(
    ("model", "given", "expected"),
    [
        (
            lambda: nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 1)),
            with_column(3, 0.0),
            {"InputColumnZero": ("info", "0: column 3 of its input is 0 in all 640 samples of 20 batches.")},
        ),
        (
            lambda: nn.Sequential(nn.Linear(6, 1)),
            with_column(0, 1.0),
            {"InputColumnConstant": ("info", "0: column 0 of its input is 1 in all 640 samples of 20 batches.")},
        ),
        (
            lambda: nn.Sequential(nn.Conv2d(4, 2, 3)),
            lambda step: with_column(2, 0.0, lambda _: torch.randn(32, 4, 5, 5))(step),
            {"InputColumnZero": ("info", "0: column 2 of its input is 0 in all 16,000 samples of 20 batches.")},
        ),
        (
            lambda: nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 1)),
            with_column(2, 0, ids),
            {"InputColumnZero": ("info", "0: column 2 of its input is 0 in all 640 samples of 20 batches.")},
        ),
    ],
    ids=["zero", "one", "channel", "ids"],
)
def test_a_constant_column_is_a_note_with_its_number(model, given, expected):
    assert said(model(), given) == expected


def test_two_constants_and_a_column_of_zeros_are_told_apart():
    model = nn.Sequential(nn.Linear(16, 1))
    found = said(model, with_column([1, 4], 7.0, with_column(9, 0.0, lambda step: normal(step, 16))))
    assert found == {
        "InputColumnZero": ("info", "0: column 9 of its input is 0 in all 640 samples of 20 batches."),
        "InputColumnConstant": ("info", "0: columns 1, 4 of its input are 7 in all 640 samples of 20 batches."),
    }


@pytest.mark.parametrize("factor", [2000.0, 0.0005])
def test_a_column_of_another_scale_is_a_note_with_its_number(factor):
    model = nn.Sequential(nn.Linear(6, 1))
    found = said(model, lambda step: normal(step) * torch.tensor([1.0, 1.0, 1.0, 1.0, factor, 1.0]))
    ((rule, (severity, message)),) = found.items()
    assert (rule, severity) == ("InputColumnScale", "info")
    word = "larger" if factor > 1 else "smaller"
    assert message.startswith("0: column 4 of its input is ") and f" times {word} than the median column" in message


def test_a_column_of_another_scale_is_a_warning_when_the_loss_breaks():
    model = nn.Sequential(nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)

    def loop(watched, step):
        optimizer.zero_grad()
        model(normal(step) * torch.tensor([1.0, 1.0, 2000.0, 1.0, 1.0, 1.0])).square().mean().backward()
        optimizer.step()

    assert in_loop(model, optimizer, loop, RULES)["InputColumnScale"].severity == "warning"


def one_hot(step):
    classes = torch.randint(5, (32,), generator=torch.Generator().manual_seed(step))
    return nn.functional.one_hot(classes, 6).float()


def padded(step):
    return normal(step).triu(-26)


def bordered(step):
    batch = normal(step).clamp(min=-1.0)
    batch[:, 0] = -1.0
    return batch


class NormFirst(nn.Module):
    """Normalises its input by a norm with weights or without."""

    def __init__(self, affine):
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(6, affine=affine), nn.Linear(6, 1)

    def forward(self, inputs):
        return self.head(self.norm(inputs))


@pytest.mark.parametrize(
    ("model", "given"),
    [
        (lambda: nn.Linear(6, 1), normal),
        (lambda: nn.Sequential(nn.Linear(6, 1)), one_hot),
        (lambda: nn.Sequential(nn.Linear(6, 1)), lambda step: (normal(step) > 1.5).float()),
        (lambda: nn.Sequential(nn.Linear(6, 1)), lambda step: with_column([1, 2, 5], 0.0)(step)),
        (lambda: nn.Sequential(nn.Linear(6, 1)), bordered),
        (lambda: nn.Sequential(nn.Linear(6, 1)), lambda step: torch.poisson(torch.ones(32, 6)) * (torch.arange(6) < 5)),
        (lambda: nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 1)), lambda step: with_column([0, 5], 0, ids)(step)),
        (lambda: NormFirst(affine=True), lambda step: normal(step) * torch.tensor([1.0, 1, 1, 1, 1e4, 1])),
        (lambda: NormFirst(affine=False), lambda step: normal(step) * torch.tensor([1.0, 1, 1, 1, 1e4, 1])),
    ],
    ids=["usual", "one-hot", "mask", "half", "border", "counts", "marks at both ends", "norm", "norm without weights"],
)
def test_columns_that_are_so_on_purpose_are_silent(model, given):
    assert said(model(), given) == {}


def test_a_finding_on_a_column_ends_with_the_first_other_number():
    model = nn.Sequential(nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), 1e-12)
    given = [with_column(3, 0.0)(step) for step in range(49)] + [normal(step) for step in range(49, 80)]

    def loop(watched, step):
        optimizer.zero_grad()
        model(given[step]).square().mean().backward()
        optimizer.step()

    (finding,) = in_loop(model, optimizer, loop, RULES, 80).values()
    assert finding.rule == "InputColumnZero" and finding.is_over is not None


def emptied(at, make=normal, value=0):
    return lambda step: torch.full_like(make(step), value) if step in at else make(step)


@pytest.mark.parametrize(
    ("model", "make"),
    [
        (lambda: nn.Sequential(nn.Linear(6, 1)), normal),
        (lambda: nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 1)), ids),
    ],
    ids=["numbers", "ids"],
)
def test_a_batch_of_zeros_is_a_note_and_a_warning_when_it_comes_back(model, make):
    text = "0: all 192 elements of its input that were looked at are 0"
    assert said(model(), emptied({15}, make)) == {"BatchOfZeros": ("info", f"{text} at step 15.")}
    assert said(model(), emptied({15, 24}, make)) == {
        "BatchOfZeros": ("warning", f"{text} in 2 of 25 batches, at steps 15, 24.")
    }


@pytest.mark.parametrize(
    "given",
    [
        emptied({15, 20}, lambda step: (normal(step) > 0).float()),
        emptied({15, 20}, lambda step: normal(step) * (torch.rand(32, 6) > 0.99)),
        emptied({0, 2, 4}),
    ],
    ids=["masks", "sparse", "the first ones"],
)
def test_batches_that_are_zero_by_chance_or_from_the_start_are_silent(given):
    assert "BatchOfZeros" not in said(nn.Sequential(nn.Linear(6, 1)), given)


class TwoInputs(nn.Module):
    """Reads an image and a sound, one of which may be missing."""

    def __init__(self):
        super().__init__()
        self.image, self.sound = nn.Linear(6, 4), nn.Linear(6, 4)

    def forward(self, batch):
        return self.image(batch[0]) + self.sound(batch[1])


def test_a_part_of_a_batch_that_is_missing_is_silent_and_an_empty_batch_is_not():
    parts = lambda at, step: torch.stack([emptied(at)(step), normal(step + 100)])  # noqa: E731
    assert said(TwoInputs(), lambda step: parts({15, 16, 17}, step)) == {}
    found = said(TwoInputs(), lambda step: parts({15, 16}, step) * (step not in {15, 16}))
    assert found["BatchOfZeros"][0] == "warning"


def test_a_packed_sequence_has_the_columns_of_its_data():
    model = nn.GRU(6, 3, batch_first=True)
    given = lambda step: torch.stack([with_column(3, 0.0)(step + place) for place in range(5)], 1)  # noqa: E731
    packed = lambda module, batch: module(pack_padded_sequence(batch, [5] * 32, batch_first=True))[0].data  # noqa: E731
    assert "InputColumnZero" in said(model, given, call=packed)


def test_a_fit_tells_columns_too(tmp_path):
    made = [(with_column(3, 0.0)(step), torch.randn(32, 3)) for step in range(30)]
    found = in_trainer(tmp_path, Net(), made, RULES, max_steps=30)
    assert [each.message for each in found.values()] == ["body.0: column 3 of its input is 0 in all 640 samples of 20 batches."]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int64, torch.uint8])
def test_columns_are_measured_in_all_formats(dtype):
    numbers = measured(torch.tensor([[0, 3, 1], [0, 4, 1]], dtype=dtype))
    assert numbers.tolist() == [[0, 3, 1], [0, 4, 1], [0, 2, 2], [0, 25, 2], [2, 2, 2]]


def test_columns_with_numbers_that_are_not_finite_are_not_judged():
    columns = Columns()
    for _ in range(20):
        columns.add(measured(torch.tensor([[0.0, 1.0, float("inf")]] * 30 + [[0.0, 2.0, 3.0]])).numpy())
    assert not columns.are_judged and columns.constant() == [] and columns.apart() == []


def test_a_background_is_the_most_frequent_number_of_a_batch():
    usual = np.concatenate([np.full(60, -0.8), np.arange(4.0)])
    batches_ = EmptyBatches()
    assert not any(batches_.is_empty(usual) for _ in range(20))
    assert not batches_.is_empty(np.full(64, -0.8)) and not batches_.is_empty(np.full(100, -0.8))
    assert batches_.is_empty(np.full(512, -0.8))
