"""Every driver of this package does what a driver must do."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader

from lightning_hooks import instrument
from tests.callbacks.models import trainer_of
from tests.conformance.drivers import BATCH, DriverConformance, Task

os.environ["HF_HUB_OFFLINE"] = "1"


def loop(task: Task, model: Any, optimizer: Any, backward: Callable[[Tensor], Any], step: Callable[[], Any]) -> None:
    """Train a task in a loop of one's own, in a block of `instrument` if there are callbacks."""
    with instrument(model, task.callbacks, optimizer=optimizer) if task.callbacks else nullcontext() as watched:
        for batches in task.steps:
            began = None if watched is None else watched.next_step
            for batch in batches:
                loss = model(batch)["loss"]
                if watched is not None:
                    watched.note_loss(loss)
                backward(loss)
            step()
            optimizer.zero_grad()
            # The loss scaler has skipped the step, of which nothing tells `instrument`.
            if watched is not None and watched.next_step == began:
                watched.resume(again=True)
            task.evaluate()
            if watched is not None and watched.stopped:
                break


class TestPlainLoop(DriverConformance):
    """`instrument` in a loop of torch alone."""

    def train(self, task: Task) -> None:
        scaler = task.scaler or torch.amp.GradScaler("cpu", enabled=False)

        def step() -> None:
            scaler.step(task.optimizer)
            scaler.update()

        loop(task, task.model, task.optimizer, lambda loss: scaler.scale(loss / task.micro).backward(), step)


class TestFabric(DriverConformance):
    """`instrument` with what Fabric returns."""

    def train(self, task: Task) -> None:
        fabric_module = pytest.importorskip("lightning.fabric")
        plugins = pytest.importorskip("lightning.fabric.plugins")
        mixed = [] if task.scaler is None else [plugins.MixedPrecision("16-mixed", "cpu", scaler=task.scaler)]
        fabric = fabric_module.Fabric(accelerator="cpu", devices=1, plugins=mixed)
        model, optimizer = fabric.setup(task.model, task.optimizer)
        loop(task, model, optimizer, lambda loss: fabric.backward(loss / task.micro), optimizer.step)


@pytest.fixture
def _no_state_of_accelerate() -> Iterator[None]:
    yield
    if "accelerate" in sys.modules:
        from accelerate.state import AcceleratorState, GradientState

        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()


@pytest.mark.usefixtures("_no_state_of_accelerate")
class TestAccelerate(DriverConformance):
    """`instrument` with what accelerate returns, which skips the steps between those of the optimizer."""

    def train(self, task: Task) -> None:
        accelerator = pytest.importorskip("accelerate").Accelerator(cpu=True, gradient_accumulation_steps=task.micro)
        accelerator.scaler = task.scaler  # Accelerate itself makes a scaler on a GPU only.
        model, optimizer = accelerator.prepare(task.model, task.optimizer)
        batches = 0

        def backward(loss: Tensor) -> None:
            nonlocal batches
            batches += 1
            with accelerator.accumulate(model):
                accelerator.backward(loss)
                if batches % task.micro:
                    optimizer.step()

        loop(task, model, optimizer, backward, optimizer.step)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("_no_state_of_accelerate")
class TestTransformers(DriverConformance):
    """`HooksTrainerCallback` in the Trainer of `transformers`, which tells no callback of an exception."""

    tells_failure = False

    def train(self, task: Task) -> None:
        transformers = pytest.importorskip("transformers")
        pytest.importorskip("accelerate")
        from lightning_hooks.transformers import HooksTrainerCallback

        rows = [{"x": row, "labels": torch.zeros(())} for step in task.steps for batch in step for row in batch]

        class Trainer(transformers.Trainer):  # type: ignore[misc, name-defined]
            def get_train_dataloader(self) -> Any:
                data = DataLoader(rows, batch_size=BATCH, collate_fn=transformers.default_data_collator)
                return self.accelerator.prepare(data)

        arguments = transformers.TrainingArguments(
            output_dir=str(task.root),
            per_device_train_batch_size=BATCH,
            gradient_accumulation_steps=task.micro,
            num_train_epochs=1,
            max_grad_norm=0.0,
            eval_strategy="steps" if task.evaluates else "no",
            eval_steps=1,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
        )
        watching = HooksTrainerCallback(task.callbacks) if task.callbacks else None
        trainer = Trainer(
            task.model,
            arguments,
            train_dataset=rows,
            eval_dataset=rows[:BATCH],
            callbacks=[] if watching is None else [watching],
            optimizers=(task.optimizer, LambdaLR(task.optimizer, lambda step: 1.0)),
        )
        trainer.accelerator.scaler = task.scaler
        try:
            trainer.train()
        finally:
            if watching is not None:
                watching.close()


class _Module(LightningModule):
    def __init__(self, task: Task) -> None:
        super().__init__()
        self.net, self._optimizer = task.model, task.optimizer

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        loss: Tensor = self.net(batch)["loss"]
        return loss

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        self.net(batch)

    def configure_optimizers(self) -> Any:
        return self._optimizer


class TestLightning(DriverConformance):
    """The callbacks in a Trainer of Lightning, which gives a step that the loss scaler skips a number."""

    prefix = "net."
    counts_skipped = True

    def train(self, task: Task) -> None:
        options: dict[str, Any] = {} if task.scaler is None else {"plugins": MixedPrecision("16-mixed", "cpu", task.scaler)}
        if task.evaluates:
            options |= {"val_check_interval": task.micro, "limit_val_batches": 1, "num_sanity_val_steps": 0}
        else:
            options |= {"limit_val_batches": 0}
        trainer = trainer_of(task.root, *task.callbacks, accumulate_grad_batches=task.micro, **options)
        data = DataLoader([batch for step in task.steps for batch in step], batch_size=None)
        trainer.fit(_Module(task), data, DataLoader([torch.ones(BATCH, 4)], batch_size=None))
