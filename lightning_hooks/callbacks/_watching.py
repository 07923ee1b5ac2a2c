"""Watching: the job of a `StatsMonitor`, which watches by its own rules and by those of its guests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from torch import nn
from typing_extensions import override

from lightning_hooks.callbacks._checks import Earlier
from lightning_hooks.callbacks._monitor_options import MonitorOptions
from lightning_hooks.callbacks._monitor_plans import Resolved, resolve_stages
from lightning_hooks.callbacks._monitoring import Monitoring
from lightning_hooks.engine.plain_loop.part import LoopPart
from lightning_hooks.engine.plain_loop.run import LoopRun
from lightning_hooks.plan.defaults import DEFAULT_WATCH

if TYPE_CHECKING:
    from lightning_hooks.callbacks._base import HooksCallback
    from lightning_hooks.callbacks._lightning import Trainer
    from lightning_hooks.callbacks.monitor import StatsMonitor


class Watching(Monitoring["StatsMonitor"]):
    """The job of a `StatsMonitor`."""

    owner: StatsMonitor

    @property
    @override
    def options(self) -> MonitorOptions:
        owner = self.owner
        return MonitorOptions(
            owner.schedule,
            stages=owner.stages,
            scalars=owner.scalars,
            max_scalars=owner.max_scalars,
            max_histograms=owner.max_histograms,
            histogram_every_n_steps=owner.histogram_every_n_steps,
            on_error=owner.on_error,
            max_overhead=owner.max_overhead,
            consumers=owner.consumers,
            report=owner.report,
            is_default=owner.watch is None,
        )

    @property
    @override
    def rules(self) -> str:
        watch = self.owner.watch
        return ", ".join(f"watch[{i}]" for i in range(len(watch))) if watch else "the default rules"

    @override
    def in_loop(self, run: LoopRun) -> LoopPart:
        asked = (callback._job.guest_in_loop(self, run) for callback in cast("Sequence[HooksCallback]", run.callbacks))
        return self.part_in_loop(run, self.owner.watch, [guest for guest in asked if guest is not None])

    @override
    def resolve(self, model: nn.Module, trainer: Trainer | None = None, earlier: Earlier | None = None) -> Resolved:
        watch = self.owner.watch
        guests = self.guests(trainer)
        needed = [rule for guest in guests for rule in guest.rules]
        watched = [*(DEFAULT_WATCH if watch is None else watch), *needed] if needed else watch
        name = "the default watch" if watch is None else "watch"
        options = replace(self.options, every_step=any(guest.every_step for guest in guests))
        return resolve_stages(model, watched, options, label=self.label, name=name)
