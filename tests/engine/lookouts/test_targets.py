"""Lookouts note targets that do not count, vary or stay, and how they follow from given tokens, by the graph of the loss."""

import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from lightning_hooks import HealthMonitor, StatsMonitor, assert_no_hooks
from lightning_hooks.engine.lookouts.loss_targets import targets_of
from tests.callbacks.models import Net, trainer_of
from tests.engine.lookouts.loops import in_loop, in_trainer

RULES = ["TargetsIgnored", "TargetsConstant", "EndNeverTarget", "TargetsAreInputs", "TargetsMisplaced", "TargetsChange"]


class Classes(Net):
    """Classifies into three classes, with the labels of the batch, or those that a function makes of them."""

    def __init__(self, labels=lambda y: y, loss=F.cross_entropy):
        super().__init__()
        self.labels, self.loss = labels, loss

    def training_step(self, batch, batch_idx):
        return self.loss(self(batch[0]), self.labels(batch[1]))


def classes_of(label, batches=30, rows=64):
    return [(torch.randn(rows, 6), label(torch.randint(3, (rows,)))) for _ in range(batches)]


def told(folder, module, batches, **options):
    found = in_trainer(folder, module, batches, RULES, **options).values()
    return [(each.rule, each.severity, each.first_step, each.message) for each in found]


def test_targets_none_of_which_counts_are_named(tmp_path):
    ignored = classes_of(lambda y: torch.full_like(y, -100))
    text = "No target counts: all 320 targets of 5 losses are -100, which the loss ignores."
    assert told(tmp_path, Classes(), ignored) == [("TargetsIgnored", "warning", 4, text)]
    summed = Classes(loss=lambda x, y: F.cross_entropy(x, y, reduction="sum"))
    assert told(tmp_path, summed, ignored) == [("TargetsIgnored", "warning", 4, text)]


def test_labels_of_one_class_are_named(tmp_path):
    text = "The targets do not vary: those of 1,536 samples are all 2."
    ones = classes_of(lambda y: torch.full_like(y, 2))
    assert told(tmp_path, Classes(), ones) == [("TargetsConstant", "warning", 23, text)]
    zeros = classes_of(torch.zeros_like, batches=20)
    text = "The targets do not vary: those of 1,280 samples are all 0."
    assert told(tmp_path, Classes(), zeros) == [("TargetsConstant", "warning", 19, text)]


def test_targets_of_one_number_are_named(tmp_path):
    batches = [(torch.randn(64, 6), torch.full((64, 3), 2.5)) for _ in range(20)]
    text = "The targets do not vary: those of 1,280 samples are all 2.5."
    assert told(tmp_path, Net(), batches) == [("TargetsConstant", "warning", 19, text)]


def partly(y):
    return torch.where(torch.rand(len(y)) < 0.99, -100, y)


@pytest.mark.parametrize(
    ("module", "label"),
    [
        (lambda: Classes(), lambda y: y),
        (lambda: Classes(), partly),
        (lambda: Classes(lambda y: torch.zeros_like(y)), lambda y: y),
        (lambda: Classes(loss=lambda x, y: F.cross_entropy(x, y, reduction="sum") + x.square().mean()), lambda y: 0 * y - 100),
        (lambda: Classes(loss=lambda x, y: F.binary_cross_entropy_with_logits(x[:, 0], torch.ones(len(x)))), lambda y: y),
    ],
    ids=["usual", "few count", "labels of a contrast", "another loss beside", "ones by the step"],
)
def test_targets_that_vary_or_are_made_on_purpose_are_silent(tmp_path, module, label):
    assert told(tmp_path, module(), classes_of(label)) == []


def test_a_rare_event_that_comes_late_ends_the_finding(tmp_path):
    batches = classes_of(torch.zeros_like, batches=40)
    batches[30][1][3] = 1
    assert told(tmp_path, Classes(), batches) == []


class Speaker(nn.Module):
    """Scores the next token."""

    def __init__(self, tokens=20):
        super().__init__()
        self.table, self.head = nn.Embedding(tokens, 8), nn.Linear(8, tokens)

    def forward(self, ids):
        return self.head(self.table(ids))


def padded(pad, rows=8, length=10, end=1):
    """Sequences of random tokens, an end token and padding."""
    ids = torch.randint(3, 20, (rows, length))
    for row, last in enumerate(torch.randint(3, length - 3, (rows,)).tolist()):
        ids[row, last], ids[row, last + 1 :] = end, pad
    return ids


def of_language(batch, loss, notes=False):
    """What is said of a plain loop that trains a `Speaker`."""
    model = Speaker()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    backward = torch.Tensor.backward

    def loop(watched, step):
        value = loss(model, batch())
        if notes:
            watched.note_loss(value)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()

    found = in_loop(model, optimizer, loop, RULES)
    assert_no_hooks(model)
    assert torch.Tensor.backward is backward
    return [(each.rule, each.severity, each.rows, each.message) for each in found.values()]


def shifted(ignored):
    return lambda model, ids: F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten(), ignore_index=ignored)


def masked(model, ids):
    """As a collator does it that masks the padding, whose id is that of the end."""
    labels = torch.where(ids == 1, -100, ids)
    return F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


@pytest.mark.parametrize("notes", [False, True])
@pytest.mark.parametrize("loss", [shifted(1), masked], ids=["by its id", "by a mask"])
def test_an_end_token_that_is_ignored_as_padding_is_a_note(loss, notes):
    text = "Token 1 follows the last target of each padded sequence, and is never a target itself."
    assert of_language(lambda: padded(pad=1), loss, notes) == [("EndNeverTarget", "info", ("",), text)]


def test_targets_that_are_not_shifted_are_a_note():
    text = "Each target is the token that the model is given at the same place."
    copied = of_language(lambda: padded(pad=2), lambda model, ids: F.cross_entropy(model(ids).flatten(0, 1), ids.flatten()))
    assert copied == [("TargetsAreInputs", "info", ("",), text)]


def ahead(places):
    """Targets that stand so many places behind the given tokens."""
    return lambda model, ids: F.cross_entropy(model(ids[:, :-places]).flatten(0, 1), ids[:, places:].flatten())


def shifted_twice(model, ids):
    """As code does that shifts for a model which shifts too."""
    given, labels = ids[:, :-1], ids[:, 1:]
    return F.cross_entropy(model(given)[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


@pytest.mark.parametrize(("loss", "places"), [(shifted_twice, 2), (ahead(1), 1)])
def test_targets_behind_the_next_tokens_are_named(loss, places):
    text = f"The targets are the tokens {places} places behind the given ones, not the next ones."
    told = of_language(lambda: torch.randint(20, (8, 10)), loss)
    assert told == ([("TargetsMisplaced", "warning", ("",), text)] if places > 1 else [])


@pytest.mark.parametrize(("share", "is_told"), [(0.5, True), (0.0, False)])
def test_sequences_with_targets_at_different_places_are_named(share, is_told):
    def mixed(model, ids):
        targets = torch.where(torch.arange(8)[:, None] < 8 * share, ids[:, :-1], ids[:, 1:])
        return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), targets.flatten())

    text = (
        "The targets do not follow the given tokens in one way: those of 50 % of the sequences are the given tokens "
        "themselves and 50 % of the sequences are the next tokens."
    )
    told = of_language(lambda: torch.randint(20, (8, 10)), mixed)
    assert told == ([("TargetsMisplaced", "warning", ("",), text)] if is_told else [])


def guessed(model, ids):
    """As a model that fills in masked tokens is trained."""
    is_masked = torch.rand(ids.shape) < 0.3
    targets = torch.where(is_masked, ids, -100)
    return F.cross_entropy(model(torch.where(is_masked, 2, ids)).flatten(0, 1), targets.flatten())


def tagged(model, ids):
    return F.cross_entropy(model(ids).flatten(0, 1), torch.where(ids == 1, -100, ids % 5).flatten())


@pytest.mark.parametrize(
    ("batch", "loss"),
    [
        (lambda: padded(pad=2), shifted(2)),
        (lambda: padded(pad=0), shifted(-100)),
        (lambda: torch.randint(20, (8, 10)), shifted(-100)),
        (lambda: padded(pad=2), guessed),
        (lambda: padded(pad=1), tagged),
    ],
    ids=["padding of its own", "padding that counts", "no padding", "masked tokens", "tags"],
)
def test_usual_targets_of_tokens_are_silent(batch, loss):
    assert of_language(batch, loss) == []


def epochs_of(relabel, inputs=None, epochs=3, rows=32):
    """The batches of some epochs of four, of the same samples, whose labels a function of the epoch changes."""
    torch.manual_seed(0)
    samples = [(torch.randn(rows, 6) if inputs is None else inputs(rows), torch.randint(3, (rows,))) for _ in range(4)]
    return [(x, relabel(y, epoch)) for epoch in range(epochs) for x, y in samples]


class Epochs(torch.utils.data.DataLoader):
    """Batches of several epochs that a loader of four batches gives."""

    def __init__(self, batches):
        super().__init__(batches[:4], batch_size=None)
        self.batches, self.begun = batches, 0

    def __iter__(self):
        self.begun += 1
        return iter(self.batches[4 * self.begun - 4 : 4 * self.begun])


def relabelled(folder, module, batches):
    monitor = HealthMonitor(rules=["TargetsChange"])
    trainer = trainer_of(folder, StatsMonitor(loggers=[]), monitor, max_epochs=len(batches) // 4, max_steps=-1)
    trainer.fit(module, Epochs(batches))
    assert_no_hooks(module)
    return [(each.severity, each.message) for each in monitor.findings]


def test_samples_with_other_labels_in_the_next_epoch_are_named(tmp_path):
    rolled = epochs_of(lambda y, epoch: y.roll(epoch))
    ((severity, text),) = relabelled(tmp_path, Classes(), rolled)
    assert severity == "warning"
    assert re.fullmatch(r"Of 96 samples that came again in a later epoch, \d\d had another target than before\.", text)
    numbers = [(x, torch.randn(len(x), 1)) for x, _ in rolled]
    assert len(relabelled(tmp_path, Classes(loss=lambda x, y: F.mse_loss(x[:, :1], y)), numbers)) == 1


class Converting(Classes):
    """Converts inputs of any format."""

    def forward(self, x):
        return super().forward(x.real.float())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.complex64, torch.int16])
def test_samples_of_any_format_are_known_again(tmp_path, dtype):
    rolled = [((50 * x).to(dtype), y) for x, y in epochs_of(lambda y, epoch: y.roll(epoch))]
    ((_, text),) = relabelled(tmp_path, Converting(), rolled)
    assert text.startswith("Of 96 samples that came again in a later epoch")


@pytest.mark.parametrize(
    ("module", "batches"),
    [
        (Classes(), epochs_of(lambda y, epoch: y)),
        (Classes(), epochs_of(lambda y, epoch: torch.where(torch.arange(32) < 2, y.roll(epoch), y))),
        (Classes(), [(x + torch.randn_like(x), y) for x, y in epochs_of(lambda y, epoch: y.roll(epoch))]),
        (Classes(), epochs_of(lambda y, epoch: y.roll(epoch), inputs=lambda rows: torch.randint(2, (rows, 6)).float())),
        (Classes(lambda y: y.roll(1)), epochs_of(lambda y, epoch: y.roll(epoch))),
        (
            Classes(loss=lambda x, y: F.mse_loss(x[:, 0], y)),
            epochs_of(lambda y, epoch: y.float() + 0.01 * torch.randn(32)),
        ),
    ],
    ids=["the same", "a few mistakes", "augmented", "inputs that many samples share", "labels of the step", "noise on numbers"],
)
def test_usual_labels_of_later_epochs_are_silent(tmp_path, module, batches):
    assert relabelled(tmp_path, module, batches) == []


def test_a_tensor_that_was_saved_under_hooks_is_not_unpacked():
    unpacked = []
    logits = torch.randn(4, 3, requires_grad=True)
    with saved_tensors_hooks(lambda tensor: tensor, lambda tensor: unpacked.append(1) or tensor):
        loss = F.cross_entropy(logits, torch.tensor([0, 1, 2, 0]))
    assert targets_of(loss) == [] and unpacked == []
    assert len(targets_of(F.cross_entropy(logits, torch.tensor([0, 1, 2, 0])))) == 1


def test_neither_weights_nor_random_numbers_change():
    def trained(is_watched):
        torch.manual_seed(0)
        model = Speaker()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)

        def loop(watched, step):
            optimizer.zero_grad()
            shifted(1)(model, padded(pad=1)).backward()
            optimizer.step()

        if is_watched:
            in_loop(model, optimizer, loop, [*RULES, "BatchesRepeat", "WaitsForData"])
        else:
            for step in range(30):
                loop(None, step)
        return [*model.parameters(), torch.get_rng_state()]

    assert all(map(torch.equal, trained(True), trained(False)))
