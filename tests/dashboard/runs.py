"""Runs whose every number is known, written as a monitor writes them."""

import builtins
import errno
import json
import os
from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.compat.proto.event_pb2 import Event
from torch.utils.data import DataLoader
from torch.utils.tensorboard import SummaryWriter

from lightning_hooks import StatsMonitor
from lightning_hooks.records.entry import LogEntry
from lightning_hooks.records.table_layout import SeriesHeader
from lightning_hooks.stats import schema
from lightning_hooks.stats.stored import MOMENT_NAMES, encode_moments, stored_moments
from lightning_hooks.tensorboard import StepEventWriter
from lightning_hooks.tensorboard.events import EventBuilder

NAMES = ("net.0.weight", "net.0.bias", "net.2.weight", "head.weight")
STATS = ("mean", "std", "norm", "zero_fraction", "nonfinite", "count")


def values_at(step: int, names: Sequence[str] = NAMES) -> dict[str, np.ndarray]:
    """Statistics of the `elements` of each row."""
    sizes, ends = _sizes(len(names))
    x = np.random.default_rng(step).standard_normal(ends[-1]) * np.repeat(np.arange(1, len(names) + 1), sizes)

    def total(numbers):
        return np.add.reduceat(numbers, ends - sizes)

    mean = total(x) / sizes
    return {
        "mean": mean,
        "std": np.sqrt(total((x - np.repeat(mean, sizes)) ** 2) / sizes),
        "norm": np.sqrt(total(x**2)),
        "zero_fraction": total(x == 0) / sizes,
        "nonfinite": np.zeros(len(names)),
        "count": sizes.astype(float),
    }


def elements(step: int, row: int) -> np.ndarray:
    """The elements of a row."""
    sizes, ends = _sizes(row + 1)
    return np.random.default_rng(step).standard_normal(ends[-1])[-sizes[-1] :] * (row + 1)


@cache
def _sizes(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows have 4, 5, 6 … 67, 4, 5 … elements; also where each ends among those of all rows."""
    sizes = 4 + np.arange(rows) % 64
    return sizes, np.cumsum(sizes)


def refuse_to_open(monkeypatch, *files):
    """Let the system refuse to open these files: a test that runs as root may read every file."""
    opens = builtins.open

    def opened(file, *args, **kwargs):
        if str(file) in map(str, files):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(file))
        return opens(file, *args, **kwargs)

    monkeypatch.setattr(builtins, "open", opened)


def write_scalars(folder, steps: Sequence[int], **values: float):
    """Write a run without tables: the same scalars at each step, with `__` for the slash of their tags."""
    with SummaryWriter(folder) as writer:
        for step in steps:
            for name, value in values.items():
                writer.add_scalar(name.replace("__", "/"), value, step)


def write_about(folder, rows: Mapping[str, Mapping[str, object]]):
    """Write the facts about rows, by name, that a monitor writes at the start of a run."""
    with SummaryWriter(folder) as writer:
        writer._get_file_writer().add_event(Event(summary=EventBuilder().about(rows, "")), 0)


def fit(model, folder, watch, steps: int):
    """Train a LightningModule on 3 numbers for some steps, and write a run with a `StatsMonitor`."""
    trainer = Trainer(
        max_steps=steps,
        logger=TensorBoardLogger(folder, name="", version=""),
        callbacks=[StatsMonitor(watch=watch)],
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        accelerator="cpu",
    )
    trainer.fit(model, DataLoader(torch.ones(4 * steps, 3), batch_size=4))


CLIPPED = {"transform_norm_before__0_Clip": 2.0, "transform_norm_after__0_Clip": 1.0, "transform_acted__0_Clip": 1.0}


STORED = stored_moments(magnitudes=False)


@cache
def _headers(tensor, stats, names):
    return tuple(SeriesHeader(tensor, stat, names, slice(i * len(names), (i + 1) * len(names))) for i, stat in enumerate(stats))


def headers_of(tensor, stats, names):
    """Series of these names; the same object for the same names, as a layout has it."""
    return _headers(tensor, tuple(stats), tuple(names))


def moments_of(values: Mapping[str, np.ndarray]) -> np.ndarray:
    """Moments with these statistics, float64 [rows, 9]; where the norm was changed, of numbers whose mean is 0."""
    count = values["count"]
    moments = np.zeros((len(count), len(schema.MOMENTS)))
    for column, moment in enumerate(schema.MOMENTS):
        moments[:, column] = moment.neutral
    with np.errstate(invalid="ignore"):
        m2 = count * values["std"] ** 2
        is_changed = ~np.isclose(np.sqrt(m2 + count * values["mean"] ** 2), values["norm"], rtol=1e-12)
        mean, m2 = np.where(is_changed, 0.0, values["mean"]), np.where(is_changed, values["norm"] ** 2, m2)
    there = count > 0
    extreme = np.where(np.isinf(values["norm"]), np.inf, 9.0)
    columns = (count, mean, m2, 0, -extreme, extreme, values["zero_fraction"] * count, values["nonfinite"], 0)
    for column, numbers in enumerate(columns):
        moments[:, column] = np.where(there, numbers, moments[:, column])
    return moments


def write_run(
    folder,
    steps: Sequence[int],
    names: Sequence[str] = NAMES,
    change=None,
    tensor: str = "grad",
    prefix: str = "",
    histograms: bool = False,
    scalars: Mapping[str, float] | None = None,
    stats: Sequence[str] = STATS,
    old: bool = False,
):
    """Write a run; `change(step, values)` may change the statistics [rows] of a step. Returns the values of each step.

    What is stored are moments with these statistics. With `old` it is the statistics themselves, as before moments were stored.
    """
    writer = SummaryWriter(folder)
    run = StepEventWriter(writer)
    names = tuple(names)
    headers = headers_of(tensor, [stat for stat in stats if stat in STATS], names)
    written = {}
    if not old:
        said = json.dumps(
            {"format": 1, "asked": {f"{prefix}{tensor}": [each for each in stats if each != "count"]}, "ranks": 1}
        )
        writer._get_file_writer().add_event(Event(summary=EventBuilder().index(said)), min(steps, default=0))
    for step in steps:
        values = values_at(step, names)
        if change is not None:
            change(step, values)
        written[step] = values
        flat = np.concatenate([values[head.stat] for head in headers])
        measured = np.tile(values["count"] > 0, len(headers))
        drawn = np.zeros((len(names) if histograms else 0, 509))
        drawn[:, 200 + step % 50] = 3
        drawn[:, 300] = 1
        entry = LogEntry(
            step=step,
            prefix=prefix,
            headers=headers,
            values=flat,
            measured=measured,
            summaries={"run/grad_norm": float(np.sqrt((values["norm"] ** 2).sum())), **(scalars or {})},
            histogram_tags=[f"{prefix}{tensor}_histogram/{name}" for name in names] if histograms else [],
            histogram_counts=drawn,
            wall_time=1000.0 + step,
            table=None if old else headers_of(tensor, [MOMENT_NAMES[column] for column in STORED], names),
            table_values=encode_moments(moments_of(values))[:, STORED].T.ravel(),
        )
        run.write(entry)
    writer.close()
    return written
