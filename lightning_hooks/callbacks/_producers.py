"""The plans of a monitor's stages, and the producers of their step views."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from lightning_hooks.engine.watching.observer import Observer
from lightning_hooks.engine.watching.producer import Producer
from lightning_hooks.plan.plan import Plan
from lightning_hooks.records.consumer import Publisher
from lightning_hooks.records.step_view import STAGE_PREFIX

if TYPE_CHECKING:
    from lightning_hooks.callbacks._run import LightningRun
    from lightning_hooks.callbacks.monitor import StatsMonitor


def plans_of(monitor: StatsMonitor, plan: Plan) -> dict[str, Plan]:
    """The plan of each stage of a monitor. A stage for which no rule matches anything is skipped with a warning.

    Args:
        monitor: the monitor, for its stages.
        plan: the whole plan of the monitor.
    """
    plans: dict[str, Plan] = {}
    for stage in [stage for stage in STAGE_PREFIX if stage in monitor.stages]:
        watched = plan if stage == "train" else plan.forward()
        if watched.rows or stage == "train":
            plans[stage] = watched
        # If no stage has rows, do not warn of this stage: another warning says that nothing is watched at all.
        elif plan.rows:
            warnings.warn(f"{monitor._label}stages: no rule matches anything to watch in {stage!r}", stacklevel=2)
    return plans


def producers_of(
    monitor: StatsMonitor,
    plans: Mapping[str, Plan],
    leads: Mapping[str, bool],
    run: LightningRun,
    publisher: Publisher,
    alone: bool,
) -> dict[str, Producer]:
    """The producer of each stage.

    Args:
        monitor: the monitor, for its options.
        plans: the plan of each stage.
        leads: by stage, whether the monitor writes the global numbers: no earlier monitor writes them under the same tags.
        run: the run of the monitor.
        publisher: passes the views to the consumers.
        alone: whether the run has one process, even if a process group exists.
    """
    producers: dict[str, Producer] = {}
    device: Any = cast(Any, run.model).device
    for stage, plan in plans.items():
        observer = Observer(plan, stage, on_error=monitor.on_error, device=device, alone=alone, label=monitor._label)
        facts = run.facts_of_step if stage == "train" else None
        structure = run.model_facts.structure
        producers[stage] = Producer(observer, publisher, summaries=leads[stage], facts=facts, structure=structure)
    return producers
