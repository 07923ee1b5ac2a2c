"""A spike or a number that is not finite is told to the row of the batch, with the index of the sample if it is known."""

import warnings
import weakref

import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, TensorDataset

from lightning_hooks import HealthMonitor, StatsMonitor, assert_no_hooks, instrument
from lightning_hooks.engine.lookouts import rows
from lightning_hooks.engine.lookouts.surroundings import Surroundings
from tests.callbacks.models import Net, assert_clean, trainer_of
from tests.engine.lookouts.loops import in_loop

ORIGINAL = BatchSampler.__iter__
BAD = 117


def model_of():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))


def data_of(count, seed=1):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 8, generator=generator)
    noise = torch.randn(count, 1, generator=generator)
    return x, x @ torch.linspace(-1, 1, 8)[:, None] + 0.3 * noise


def said(change, rules=("LossSpike", "GradientSpike", "NonFinite"), call=lambda model, x: model(x), steps=150):
    """What is said of a regression in which `change` is called with the batch of one step."""
    model = model_of()
    optimizer = torch.optim.Adam(model.parameters(), 0.003)

    def loop(watched, step):
        x, y = data_of(64, seed=step)
        if step == BAD:
            change(x, y)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(call(model, x), y)
        watched.note_loss(loss)
        loss.backward()
        optimizer.step()

    found = in_loop(model, optimizer, loop, rules, steps)
    assert_no_hooks(model)
    return found


def test_two_samples_with_wrong_labels_are_named():
    def change(x, y):
        y[17], y[3] = 200.0, -180.0

    found = said(change)
    text = "Rows 3 and 17 of the 64 in the batch of step 117 hold more than 99 % of the squared gradient at 2."
    assert found["LossSpike"].message.startswith("The loss jumps to ")
    assert found["LossSpike"].message.endswith(f". {text}")
    assert found["GradientSpike"].message.endswith(f". {text}")


def test_a_batch_that_differs_as_a_whole_is_spread():
    assert said(lambda x, y: y.add_(30.0))["LossSpike"].message.endswith(
        ". The gradient at 2 is spread over the batch of step 117: 32 of its 64 rows hold half of the squared gradient."
    )


def test_a_sample_that_is_not_finite_is_named():
    def change(x, y):
        x[5, 2] = torch.nan

    assert said(change)["NonFinite"].message == (
        "The loss, then 5 more: the loss is not finite. The gradient at 2 is not finite in row 5 of the 64 in the batch of "
        "step 117, where the batch itself is not finite either."
    )


def test_rows_are_told_also_if_few_steps_are_measured():
    model, monitor = model_of(), HealthMonitor(rules=["NonFinite"], every_n_steps=10)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with instrument(model, [monitor], optimizer=optimizer) as watched:
        for step in range(40):
            x, y = data_of(64, seed=step)
            if step == 23:
                y[9] = torch.nan
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            watched.note_loss(loss)
            loss.backward()
            optimizer.step()
    (finding,) = monitor.findings
    assert "The gradient at 2 is not finite in row 9 of the 64 in the batch of step 23." in finding.message


class Late:
    """A copy that has arrived when the next step ends, as from a device that runs behind the host."""

    ready = False

    def __init__(self, tensor):
        self._array, self._asked = tensor.numpy().copy(), 0

    @property
    def has_arrived(self):
        self._asked += 1
        return self._asked > 1

    def wait(self):
        assert self._asked > 1
        return self._array


def test_numbers_that_come_late_are_told_when_the_spike_is(monkeypatch):
    monkeypatch.setattr(rows, "begin_copy", Late)

    def change(x, y):
        y[17] = 200.0

    assert "Row 17 of the 64 in the batch of step 117 holds more than 99 %" in said(change)["LossSpike"].message


def test_facts_keep_the_rows_of_a_jump_for_the_file_of_the_run():
    model = model_of()
    lookout = rows.RowsLookout(Surroundings.of(model, tuple))
    told = []
    for step in range(40):
        lookout.begin_step(step, "train", False)
        (read, *_), x = [*lookout.actions(lookout.step_key(step, "train"))], torch.ones(16, 8)
        read.call(model, (x,), {})
        grad = torch.ones(16, 1)
        grad[3] *= 50 if step == 30 else 1
        lookout._arrived(weakref.ref(model[2]), grad)
        lookout.end_step()
        told.append(lookout.sightings())
    text = "row 3 of the 16 in the batch of step 30 holds more than 99 % of the squared gradient at 2"
    assert [len(each) for each in told[30:34]] == [1, 1, 1, 0] and not any(told[:30])
    assert (told[30][0].text, told[30][0].at, told[30][0].kind) == (text, 30, "rows-behind")


def test_nothing_is_told_where_the_first_dimension_is_not_that_of_the_batch():
    def change(x, y):
        y[17] = 200.0

    found = said(change, call=lambda model, x: model(x.view(2, 32, 8).transpose(0, 1)).transpose(0, 1).reshape(64, 1))
    assert found["LossSpike"].message.count(".") >= 1
    assert "rows" not in found["LossSpike"].message.lower()


def test_weights_and_generators_are_those_of_a_run_that_is_not_watched():
    def trained(monitors):
        model = model_of()
        optimizer = torch.optim.Adam(model.parameters(), 0.003)
        with instrument(model, monitors, optimizer=optimizer):
            for step in range(20):
                x, y = data_of(64, seed=step)
                optimizer.zero_grad()
                nn.functional.mse_loss(nn.functional.dropout(model(x)), y).backward()
                optimizer.step()
        return [*model.parameters(), torch.random.get_rng_state()]

    plain = trained([StatsMonitor(loggers=[])])
    watched = trained([StatsMonitor(loggers=[]), HealthMonitor(rules=["LossSpike"])])
    assert all(map(torch.equal, plain, watched))


class Regression(Net):
    def __init__(self, fails_at=None):
        super().__init__()
        self.body, self.fails_at = model_of(), fails_at

    def training_step(self, batch, batch_idx):
        if self.global_step == self.fails_at:
            raise KeyboardInterrupt if self.fails_at == 3 else ValueError
        return super().training_step(batch, batch_idx)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 0.003)


def fitted(folder, module, monitor, workers=0, **options):
    x, y = data_of(3200)
    y[1234] = 200.0
    loader = DataLoader(
        TensorDataset(x, y),
        batch_size=32,
        shuffle=True,
        num_workers=workers,
        generator=torch.Generator().manual_seed(1),
    )
    trainer = trainer_of(folder, StatsMonitor(loggers=[]), monitor, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(module, loader)
    assert_clean(module)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_trainer_names_the_index_of_the_sample(tmp_path, workers):
    monitor = HealthMonitor(rules=["LossSpike"])
    fitted(tmp_path, Regression(), monitor, workers, max_epochs=3)
    assert monitor.findings
    assert all("(sample 1234) holds more than 99 %" in each.message for each in monitor.findings)
    assert BatchSampler.__iter__ is ORIGINAL


@pytest.mark.parametrize(("step", "error"), [(3, KeyboardInterrupt), (4, ValueError)])
def test_the_sampler_is_given_back_when_a_fit_is_cut_short(tmp_path, step, error):
    module = Regression(fails_at=step)
    with pytest.raises((error, SystemExit)):
        fitted(tmp_path, module, HealthMonitor(rules=["LossSpike"]))
    assert BatchSampler.__iter__ is ORIGINAL
    assert_no_hooks(module)
