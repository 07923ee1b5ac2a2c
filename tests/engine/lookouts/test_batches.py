"""A lookout notes batches that come again, by a few of their elements."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, get_worker_info

from lightning_hooks import HealthMonitor, StatsMonitor, assert_no_hooks
from lightning_hooks.engine.lookouts.fingerprints import fingerprint_of
from tests.callbacks.models import Net, assert_clean, trainer_of
from tests.engine.lookouts.loops import in_loop

RULES = ["WorkersRepeat", "EpochsRepeat", "BatchStuck", "BatchesRepeat"]


def fitted(folder, loader, epochs=3, **options):
    """What is said of a fit with a loader."""
    monitor = HealthMonitor(rules=RULES)
    module = Net()
    trainer_of(folder, StatsMonitor(loggers=[]), monitor, max_epochs=epochs, max_steps=-1, **options).fit(module, loader)
    assert_clean(module)
    return {each.rule: each for each in monitor.findings}


def data(rows=80):
    return TensorDataset(torch.randn(rows, 6), torch.randn(rows, 3))


class Stream(IterableDataset):
    """Samples that each worker reads all of, or only its part of."""

    def __init__(self, shares):
        self.shares = shares
        self.rows = torch.randn(80, 9)

    def __iter__(self):
        info = get_worker_info()
        rows = self.rows[info.id :: info.num_workers] if self.shares else self.rows
        return iter([(row[:6], row[6:]) for row in rows])


@pytest.mark.slow
@pytest.mark.parametrize("shares", [False, True])
def test_workers_that_all_read_the_whole_stream_are_named(tmp_path, shares):
    found = fitted(tmp_path, DataLoader(Stream(shares), 4, num_workers=2), epochs=1)
    if shares:
        assert found == {}
    else:
        finding = found["WorkersRepeat"]
        assert (finding.rows, finding.severity) == (("",), "warning")
        assert finding.message == (
            "Each batch comes 2 times in a row: each of the 2 workers of the loader reads all of its data set."
        )
        assert finding.first_step <= 8 and len(found) == 1


class Drawn(Dataset):
    """Samples that are drawn, with the same seed in each epoch or once."""

    def __init__(self, is_seeded):
        self.is_seeded, self.count = is_seeded, 0
        self.chance = torch.Generator().manual_seed(0)

    def __len__(self):
        return 40

    def __getitem__(self, index):
        if self.is_seeded and self.count % 40 == 0:
            self.chance.manual_seed(0)
        self.count += 1
        return torch.randn(6, generator=self.chance), torch.randn(3, generator=self.chance)


@pytest.mark.parametrize("is_seeded", [True, False])
def test_the_same_random_numbers_in_each_epoch_of_a_loader_that_shuffles_are_named(tmp_path, is_seeded):
    found = fitted(tmp_path, DataLoader(Drawn(is_seeded), 4, shuffle=True))
    if is_seeded:
        finding = found["EpochsRepeat"]
        assert (finding.rows, finding.first_step, finding.severity) == (("",), 19, "warning")
        assert finding.message == ("The loader shuffles, but the same 10 batches come again and again in the same order.")
        assert len(found) == 1
    else:
        assert found == {}


def test_a_batch_that_is_given_again_and_again_is_named(tmp_path):
    loader = DataLoader(data(240), 4, shuffle=True)

    class Kept(Net):
        def on_before_batch_transfer(self, batch, dataloader_idx):
            self.kept = batch if self.global_step < 15 else self.kept
            return self.kept

    monitor = HealthMonitor(rules=RULES)
    trainer_of(tmp_path, StatsMonitor(loggers=[]), monitor, max_epochs=1, max_steps=-1).fit(Kept(), loader)
    (finding,) = monitor.findings
    assert (finding.rule, finding.first_step, finding.severity) == ("BatchStuck", 33, "warning")
    assert finding.message == "All batches since step 14 are the same one, and those before it were others."


@pytest.mark.parametrize(
    ("loader", "options"),
    [
        (lambda: DataLoader(data(), 8, shuffle=True), {}),
        (lambda: DataLoader(data(80), 80, shuffle=True), {"epochs": 30}),
        (lambda: DataLoader(data(80), 80), {"epochs": 30}),
        (lambda: DataLoader(data(), 8), {"overfit_batches": 3, "epochs": 9}),
        (lambda: DataLoader(data(), 8, shuffle=True), {"accumulate_grad_batches": 3}),
    ],
    ids=["shuffled", "the whole, shuffled", "the whole", "overfit on purpose", "accumulated"],
)
def test_what_comes_anew_or_again_on_purpose_is_silent(tmp_path, loader, options):
    assert fitted(tmp_path, loader(), **options) == {}


@pytest.mark.parametrize(
    ("loader", "text"),
    [
        (lambda: DataLoader(data(), 8), "The same 10 batches come again and again in the same order."),
        (lambda: DataLoader([next(iter(data()))] * 80, 8), "All batches are the same one, although the loader has several."),
        (
            lambda: DataLoader(TensorDataset(*(each.repeat_interleave(3, 0) for each in data().tensors)), 1),
            "Each batch comes 3 times in a row.",
        ),
    ],
    ids=["a fixed order", "one batch", "three times"],
)
def test_what_may_be_meant_is_a_note(tmp_path, loader, text):
    found = fitted(tmp_path, loader())
    assert [(each.rule, each.severity, each.message) for each in found.values()] == [("BatchesRepeat", "info", text)]


@pytest.mark.parametrize("of_tokens", [False, True])
def test_in_a_loop_what_the_model_is_given_is_looked_at(of_tokens):
    model = nn.Sequential(nn.Embedding(50, 6), nn.Linear(6, 1)) if of_tokens else nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    batches = torch.randint(50, (9, 16, 6)) if of_tokens else torch.randn(9, 16, 6)

    def loop(watched, step):
        with torch.no_grad():
            model(batches[0])
        model(batches[step % 9]).square().mean().backward()
        model(batches[0]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    (finding,) = in_loop(model, optimizer, loop, RULES).values()
    assert_no_hooks(model)
    assert (finding.rule, finding.first_step, finding.severity) == ("BatchesRepeat", 17, "info")
    assert finding.message == "The same 9 batches come again and again in the same order."


def test_several_steps_with_one_batch_are_a_note_and_other_batches_none():
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def loop(times):
        def step_of(watched, step):
            batch = torch.randn(4, 6, generator=torch.Generator().manual_seed(step // times))
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step_of

    assert in_loop(model, optimizer, loop(1), RULES) == {}
    found = in_loop(model, optimizer, loop(4), RULES)
    assert [each.message for each in found.values()] == ["Each batch comes 4 times in a row."]


@pytest.mark.parametrize(
    "change",
    [
        lambda tensor: tensor,
        lambda tensor: tensor.to(memory_format=torch.channels_last),
        lambda tensor: tensor[:, :, 1:],
        lambda tensor: tensor.bfloat16(),
        lambda tensor: tensor > 0,
        lambda tensor: torch.complex(tensor, tensor),
        lambda tensor: (9 * tensor).long(),
        lambda tensor: tensor.expand(2, -1, -1, -1, -1),
    ],
)
def test_fingerprints_of_all_formats_and_layouts_are_equal_for_equal_tensors_only(change):
    one, other = torch.randn(2, 8, 3, 16, 16)
    values = [fingerprint_of([change(each)]).value() for each in (one, one.clone(), other)]
    assert values[0] == values[1] != values[2]
    assert fingerprint_of([change(one.to("meta"))]) is None
