"""What a tool costs: the time of a step with it, as a multiple of the time without, on healthy trainings."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback
from torch import nn
from torch.optim import SGD

from galleries.recorder.fault import Case, Fault, fit
from galleries.recorder.healthy import FAULTS
from galleries.recorder.parts import FEATURES, Regressor, batches, chain
from galleries.recorder.peers import Tool

STEPS, SKIPPED, ROUNDS = 60, 5, 3
SMALL = FAULTS[:6]


def perceptron() -> Case:
    """Four layers of 1024 units, batches of 256 rows: layers of an ordinary size."""
    torch.manual_seed(0)
    layers = {f"layer{index}": nn.Linear(1024 if index else FEATURES, 1024) for index in range(4)}
    acts = {f"act{index}": nn.ReLU() for index in range(4)}
    pairs = [item for pair in zip(layers.items(), acts.items(), strict=True) for item in pair]
    body = chain(**dict(pairs), head=nn.Linear(1024, 1))
    return Case(Regressor(body, partial(SGD, lr=1e-4)), batches(rows=256))


ORDINARY = Fault("perceptron", "Four layers of 1024 units.", perceptron)


class Clock(Callback):
    """Keeps the processor's seconds from the start of each batch to the start of the next."""

    def __init__(self) -> None:
        self.starts: list[float] = []

    def on_train_batch_start(self, *_: Any) -> None:
        self.starts.append(time.process_time())

    def seconds(self) -> float:
        """The median, the first steps apart."""
        ends = self.starts[SKIPPED + 1 :]
        return statistics.median(end - start for start, end in zip(self.starts[SKIPPED:], ends, strict=False))


def seconds_per_step(fault: Fault, make: type[Tool]) -> float | None:
    """The median seconds of a step with a tool; None if the tool ended the training."""
    tool, clock = make(), Clock()
    with tempfile.TemporaryDirectory() as folder, tool.around():
        try:
            fit(fault, Path(folder), [*tool.callbacks, clock], prepare=tool.prepare, **tool.options)
        except Exception:
            return None
    return clock.seconds() if len(clock.starts) > STEPS - 2 else None


def costs(tools: Sequence[type[Tool]]) -> list[dict[str, Any]]:
    """A line for each training and tool: the quotient of the smallest medians of some rounds, taken in turn."""
    lines = []
    for fault in [replace(each, steps=STEPS) for each in [ORDINARY, *SMALL]]:
        times: dict[type[Tool], list[float | None]] = {tool: [] for tool in (Tool, *tools)}
        for number in range(ROUNDS):
            for tool in list(times) if number % 2 == 0 else list(reversed(times)):
                times[tool].append(seconds_per_step(fault, tool))
        bare = min(value for value in times[Tool] if value is not None)
        for tool in tools:
            measured = [value for value in times[tool] if value is not None]
            ratio = round(min(measured) / bare, 3) if measured else None
            lines.append({"name": fault.name, "tool": tool.name, "ratio": ratio, "milliseconds": round(1e3 * bare, 3)})
    return lines
