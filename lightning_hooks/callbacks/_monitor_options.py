"""MonitorOptions: how a callback watches, as plain values."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from lightning_hooks.records.consumer import StepConsumer
from lightning_hooks.rules.schedule import EveryN


@dataclass(frozen=True)
class MonitorOptions:
    """How a callback watches; the fields are the options of `StatsMonitor`, already read.

    Args:
        max_scalars: None for the charts of the package if the default rules are watched, else for the usual limit.
        is_default: whether the default rules are watched.
        only_tables: whether tables alone are written, without scalars and histograms.
        watches_loss_alone: whether the loss is watched also if no rule matches anything.
        every_step: whether the loss, the whole gradient and the batch are measured at every step.
    """

    schedule: EveryN
    stages: Collection[str] = ("train",)
    scalars: Sequence[str] = ()
    max_scalars: int | None = 0
    max_histograms: int = 0
    histogram_every_n_steps: int = 1
    on_error: str = "raise"
    max_overhead: float | None = None
    consumers: Sequence[StepConsumer] = ()
    report: bool | str | os.PathLike[str] | None = None
    is_default: bool = False
    only_tables: bool = False
    watches_loss_alone: bool = False
    every_step: bool = False
