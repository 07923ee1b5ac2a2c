"""The clock: a callback that stamps the beginning of every step and switches modes between two."""

from __future__ import annotations

import gc
import statistics
import struct
import time
import warnings
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.compat.proto.event_pb2 import Event
from torch.utils.data import DataLoader

from benchmarks.blocks import Layout
from benchmarks.modes import Mode


class Clock(Callback):
    """Times each step from the beginning of its batch to the beginning of the next, so with all that ends a step.

    It must be the first callback. Switching and draining happen between two stamps and count for no step. On a device the steps
    of a block are timed together, between two moments at which the device has nothing left to do: waiting after each step would
    hide what the device does while the next one is prepared.

    Args:
        layout: which step runs in which mode.
        modes: those of the layout that do something.
        pause: seconds to wait after a mode's block, for processes that work on in the background.
        batches: of a step: with gradient accumulation several.
        device: `cpu` or `cuda`.
    """

    def __init__(
        self, layout: Layout, modes: Sequence[Mode], pause: float = 0.0, batches: int = 1, device: str = "cpu"
    ) -> None:
        self.layout = layout
        self.modes = {mode.name: mode for mode in modes}
        self.pause = pause
        self.batches = batches
        self.device = device
        self.overhead: dict[int, float] = {}
        """The values of `run/overhead` in the event file, by step."""
        self.begun: dict[int, float] = {}
        self.ended: dict[int, float] = {}
        self.drained: dict[str, list[float]] = {name: [] for name in layout.modes}
        self._leaving: Mode | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for mode in self.modes.values():
            mode.prepare(trainer)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if batch_idx % self.batches:
            return
        step = batch_idx // self.batches
        if self.device == "cuda" and self.layout.index_in_block(step) in (-1, 0, self.layout.warmup):
            torch.cuda.synchronize()
        self.ended[step - 1] = time.perf_counter()
        # The callbacks of this batch are already being called one by one, on the trainer's own list: changing it here takes
        # effect for what comes after this one, which is what is wanted.
        index = self.layout.index_in_block(step)
        if step == 0:
            for mode in self.modes.values():
                mode.gone(trainer)
        if index == 0 or step == self.layout.steps - 1:
            self._switch(trainer, step)
        elif index == 1 and self._leaving is not None:
            self._leaving.gone(trainer)
            self._leaving = None
        self.begun[step] = time.perf_counter()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for mode in self.modes.values():
            mode.finish(trainer)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        for mode in self.modes.values():
            mode.finish(trainer)

    def blocks(self, name: str, skipped: Container[int] = ()) -> list[list[float]]:
        """Seconds of the steps of a mode that count, by round.

        Args:
            name: of the mode.
            skipped: indices in the block that do not count here.
        """
        rounds: list[list[float]] = [[] for _ in range(self.layout.rounds)]
        for step, begun in self.begun.items():
            index = self.layout.index_in_block(step)
            if index >= self.layout.warmup and index not in skipped and self.layout.mode_at(step) == name:
                rounds[self.layout.round_of(step)].append(self.ended[step] - begun)
        return rounds if self.device == "cpu" else [[statistics.fmean(block)] for block in rounds]

    def at(self, name: str, index: int) -> list[float]:
        """Seconds of the steps at one index of each block of a mode."""
        steps = [s for s in self.begun if self.layout.index_in_block(s) == index and self.layout.mode_at(s) == name]
        return [self.ended[step] - self.begun[step] for step in steps]

    def _switch(self, trainer: Trainer, step: int) -> None:
        before, after = self.layout.mode_at(step - 1) if step else None, self.layout.mode_at(step)
        if before is not None:
            # What the logger has not written yet is written now, so that it does not burden the steps of another mode.
            started = time.perf_counter()
            trainer.logger.experiment.flush()  # type: ignore[union-attr]
            self.drained[before].append(time.perf_counter() - started)
        if before == after:
            return
        if before in self.modes:
            self._leaving = self.modes[before]
            self._leaving.stop(trainer)
            time.sleep(self.pause)
        if after in self.modes:
            self.modes[after].start(trainer)


def fit(
    module: LightningModule,
    loader: DataLoader[Any],
    layout: Layout,
    modes: Sequence[Mode],
    pause: float = 0.0,
    always: Sequence[Callback] = (),
    validation: DataLoader[Any] | None = None,
    options: Mapping[str, Any] | None = None,
    device: str = "cpu",
) -> Clock:
    """Run one fit under the clock, with the TensorBoard logger, in a folder that is thrown away.

    Args:
        module: what is trained.
        loader: of at least the batches of `layout.steps` steps.
        layout: which step runs in which mode.
        modes: those of the layout that do something.
        pause: as for `Clock`.
        always: callbacks that are there in every step.
        validation: the batches of a validation run, if there is one.
        options: further ones of the trainer.
        device: `cpu` or `cuda`.
    """
    options = options or {}
    clock = Clock(layout, modes, pause, options.get("accumulate_grad_batches", 1), device)
    gc.collect()
    with TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = Trainer(
            max_epochs=1,
            logger=TensorBoardLogger(Path(folder)),
            callbacks=[clock, *always, *(callback for mode in modes for callback in mode.callbacks)],
            accelerator=device,
            devices=1,
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
            default_root_dir=folder,
            **options,
        )
        trainer.fit(module, loader, validation)
        clock.overhead = values_of("watch/run/overhead", Path(folder))
    return clock


def values_of(tag: str, folder: Path) -> dict[int, float]:
    """The scalars of a tag in the event files of a folder, by step.

    TensorBoard's own reader checks every record in pure Python, which takes minutes for histograms.

    Args:
        tag: its name.
        folder: of the run.
    """
    found = {}
    for path in sorted(folder.rglob("events.out.tfevents.*")):
        content, position = path.read_bytes(), 0
        while position + 12 <= len(content):
            (length,) = struct.unpack_from("<Q", content, position)
            record = content[position + 12 : position + 12 + length]
            position += length + 16  # the length, its checksum, the record, its checksum
            if tag.encode() in record:
                event = Event.FromString(record)
                for value in event.summary.value:
                    if value.tag == tag:
                        found[event.step] = value.simple_value
    return found
