"""The rules of a monitor resolved against a model: a plan for each stage."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import NamedTuple

from torch import nn

from lightning_hooks.callbacks._monitor_options import MonitorOptions
from lightning_hooks.plan.plan import Plan
from lightning_hooks.plan.resolve import resolve
from lightning_hooks.records.step_view import STAGE_PREFIX
from lightning_hooks.rules import Watch


class Resolved(NamedTuple):
    """The rules of a monitor resolved against a model: the whole plan, and the plan of each stage that has rows."""

    plan: Plan
    plans: dict[str, Plan]


def resolve_stages(
    model: nn.Module,
    rules: Sequence[Watch] | None,
    options: MonitorOptions,
    *,
    label: str,
    name: str,
    draws: bool = True,
) -> Resolved:
    """Resolve rules against a model. A stage for which no rule matches anything is skipped with a warning.

    Args:
        model: the root module.
        rules: watch rules; None for the default ones.
        options: how the monitor watches.
        label: the prefix of rules' names in messages.
        name: of the list of rules in messages.
        draws: whether histograms are written, so that rules without `stats` measure them.

    Raises:
        RuleError: a rule is invalid in this model, or matches nothing.
    """
    plan = resolve(
        model,
        rules,
        options.schedule,
        label,
        with_loss="train" in options.stages,
        loss_alone=options.watches_loss_alone,
        every_step=options.every_step,
        draws_every=options.histogram_every_n_steps if draws else None,
        name=name,
    )
    plans: dict[str, Plan] = {}
    for stage in [stage for stage in STAGE_PREFIX if stage in options.stages]:
        watched = plan if stage == "train" else plan.forward()
        if watched.rows or stage == "train":
            plans[stage] = watched
        # If no stage has rows, do not warn of this stage: another warning says that nothing is watched at all.
        elif plan.rows:
            warnings.warn(f"{label}stages: no rule matches anything to watch in {stage!r}", stacklevel=2)
    return Resolved(plan, plans)
