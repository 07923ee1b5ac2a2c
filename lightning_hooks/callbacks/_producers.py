"""The producers of a monitor: one for each of its stages."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lightning_hooks.callbacks._checks import refuse_changed_sums
from lightning_hooks.callbacks._run import LightningRun
from lightning_hooks.engine.monitor.observer import Observer
from lightning_hooks.engine.monitor.producer import Producer
from lightning_hooks.plan.plan import Plan
from lightning_hooks.records.consumer import Publisher
from lightning_hooks.records.step_view import STAGE_PREFIX

if TYPE_CHECKING:
    from lightning_hooks.callbacks.monitor import StatsMonitor


def producers_of(
    monitor: StatsMonitor,
    run: LightningRun,
    plan: Plan,
    publisher: Publisher,
    alone: bool,
) -> dict[str, Producer]:
    """What makes the step views of each stage; a stage for which no rule matches anything is skipped with a warning.

    Args:
        monitor: whose options count.
        run: in which the monitor takes part.
        plan: of the monitor.
        publisher: takes the views.
        alone: whether the run has one process, whatever process group there is.

    Raises:
        RuleError: statistics of pairs behind a transform.
    """
    found: dict[str, Producer] = {}
    device: Any = run.model.device
    for stage in [stage for stage in STAGE_PREFIX if stage in monitor.stages]:
        watched = plan if stage == "train" else plan.forward()
        if stage == "train":
            refuse_changed_sums(plan, run.participants)
        elif not watched.rows:
            warnings.warn(f"{monitor._label}stages: no rule matches anything to watch in {stage!r}", stacklevel=2)
            continue
        observer = Observer(watched, stage, on_error=monitor.on_error, device=device, alone=alone, label=monitor._label)
        found[stage] = Producer(observer, publisher, summaries=run.leads(monitor.prefix, stage))
    return found


def plans_of(producers: Mapping[str, Producer]) -> dict[str, Plan]:
    """What is watched in each stage."""
    return {stage: producer.observer.plan for stage, producer in producers.items()}
