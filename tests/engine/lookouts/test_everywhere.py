"""The same faults of data and of teachers are told in each kind of training, and no bit of it changes."""

import os
import random
import sys
import warnings
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule
from torch.utils.data import DataLoader, SequentialSampler

from lightning_hooks import HealthMonitor, StatsMonitor, assert_no_hooks, instrument
from tests.callbacks.models import trainer_of
from tests.engine.lookouts.faulty import BATCH, FOUND, STEPS, Faulty, faulty_batch

os.environ["HF_HUB_OFFLINE"] = "1"
RATE = 1e-9
SAMPLES = [{"x": row} for number in range(STEPS) for row in faulty_batch(number)]


class Module(LightningModule):
    """The training for a Trainer."""

    def __init__(self):
        super().__init__()
        self.net = Faulty()

    def training_step(self, batch, batch_idx):
        return self.net(**batch)["loss"]

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=RATE)


def watching(model, watchers, optimizer):
    return instrument(model, watchers, optimizer=optimizer) if watchers else nullcontext()


def loop(folder, watchers, accumulate=1, prepare=lambda model: None):
    """A plain loop; `prepare` changes the model."""
    model = Faulty()
    prepare(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    with watching(model, watchers, optimizer):
        for number in range(STEPS):
            (model(faulty_batch(number))["loss"] / accumulate).backward()
            if number % accumulate == accumulate - 1:
                optimizer.step()
                optimizer.zero_grad()
    return model


def lightning(folder, watchers, ckpt_path=None, **options):
    model = Module()
    trainer = trainer_of(folder, *watchers, **{"max_epochs": 1, **options})
    trainer.fit(model, DataLoader(SAMPLES, batch_size=BATCH), ckpt_path=ckpt_path)
    return model.net


def resumed(folder, watchers):
    """A fit that goes on from a checkpoint of its tenth step, and makes another epoch."""
    model, path = Module(), folder / "begun.ckpt"
    begun = trainer_of(folder, *[type(each)(loggers=[]) for each in watchers], max_epochs=1, max_steps=10)
    begun.fit(model, DataLoader(SAMPLES, batch_size=BATCH))
    begun.save_checkpoint(path)
    torch.manual_seed(1)
    return lightning(folder, watchers, max_epochs=2, ckpt_path=path)


def transformers(folder, watchers, **options):
    """The Trainer of Hugging Face, without shuffling."""
    library = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from lightning_hooks.transformers import HooksTrainerCallback

    class InOrder(library.Trainer):
        def _get_train_sampler(self, *given):
            return SequentialSampler(SAMPLES)

    arguments = library.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=BATCH,
        num_train_epochs=1,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
        learning_rate=RATE,
        **options,
    )
    callbacks = [HooksTrainerCallback(watchers)] if watchers else []
    trainer = InOrder(Faulty(), arguments, train_dataset=SAMPLES, callbacks=callbacks)
    trainer.train()
    return trainer.model


def accelerate(folder, watchers):
    accelerator = pytest.importorskip("accelerate").Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = Faulty()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=RATE))
    with watching(model, watchers, optimizer):
        for number in range(STEPS):
            with accelerator.accumulate(model):
                accelerator.backward(model(faulty_batch(number))["loss"])
                optimizer.step()
                optimizer.zero_grad()
    return accelerator.unwrap_model(model)


WAYS = {
    "loop": loop,
    "loop, accumulated": lambda *given: loop(*given, accumulate=2),
    "loop, a part compiled": lambda *given: loop(*given, prepare=lambda model: model.teacher.compile(backend="eager")),
    "loop, compiled": lambda *given: loop(*given, prepare=lambda model: model.compile(backend="eager")),
    "lightning": lightning,
    "lightning, accumulated": lambda *given: lightning(*given, accumulate_grad_batches=2),
    "lightning, resumed": resumed,
    "transformers": transformers,
    "transformers, accumulated": lambda *given: transformers(*given, gradient_accumulation_steps=2),
    "accelerate, accumulated": accelerate,
}
COMPILED = {"loop, a part compiled": ("teacher.0",), "loop, compiled": ("student.0", "teacher.0")}
"""The layers whose data are not looked at, because they are a part of a compiled graph."""


def run(way, folder, watchers):
    """The trained model, and what the generators draw next."""
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = WAYS[way](folder, watchers)
    assert_no_hooks(model)
    return model.state_dict(), (random.random(), np.random.rand(), torch.rand(1).item())


@pytest.fixture(autouse=True)
def no_state_of_accelerate():
    yield
    if "accelerate" in sys.modules:
        from accelerate.state import AcceleratorState, GradientState

        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()


@pytest.mark.parametrize("way", WAYS)
def test_the_same_is_told_and_no_bit_changes(tmp_path, way):
    monitor = HealthMonitor(loggers=[], rules=[*FOUND])
    watched, drawn = run(way, tmp_path / "watched", [StatsMonitor(loggers=[]), monitor])
    bare, other = run(way, tmp_path / "bare", [])
    prefix = "net." if way.startswith("lightning") else ""
    rows = {rule: [prefix + row for row in rows if row not in COMPILED.get(way, ())] for rule, rows in FOUND.items()}
    expected = {rule: tuple(each) for rule, each in rows.items() if each}
    assert {each.rule: each.rows for each in monitor.findings} == expected
    assert len(monitor.findings) == len(expected), "each is told once"
    assert drawn == other
    assert all(torch.equal(one, two) for one, two in zip(watched.values(), bare.values(), strict=True))
