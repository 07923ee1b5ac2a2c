"""Checks transforms before a run. The checks depend only on the bound transforms, the optimizers and the loss scaling."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch.optim import LBFGS

from lightning_hooks.engine.changing.bound import BoundTransform
from lightning_hooks.engine.participants.scaling import unscales_itself
from lightning_hooks.engine.participants.shards import refuse_sharded
from lightning_hooks.errors import RuleError, UnsupportedError
from lightning_hooks.plan.plan import Plan


def refuse_unsupported(transforms: Iterable[BoundTransform], optimizers: Sequence[Any], *, scaled: bool) -> None:
    """Refuse transforms that have no correct result on their parameters, with these optimizers, or under a loss scaler.

    Args:
        transforms: the transforms of one callback.
        optimizers: the optimizers of the run; empty if they are not known yet.
        scaled: whether the loss is multiplied by a scale.

    Raises:
        UnsupportedError: a transform has no correct result; the message names the rule and the reason.
    """
    for bound in transforms:
        if bound.when == "backward":
            if bound.rule.params is not None:
                effect = "the rule would do nothing. Use when='step', or a rule on modules"
                refuse_sharded(bound.targets, bound.where, effect)
            if scaled and getattr(bound.transform, "repairs_nonfinite", False):
                raise UnsupportedError(
                    f"{bound.where}: {bound.name} in backward would hide the overflow from the loss scaler, whose scale "
                    "then grows without end; use when='step' on params, or bf16-mixed"
                )
        elif bound.when == "step":
            _refuse_optimizers(bound, optimizers, scaled)


def refuse_changed_sums(plan: Plan, transforms: Iterable[BoundTransform]) -> None:
    """Refuse to compare a step's gradient with those of its micro-batches if a transform has changed it in between.

    Args:
        plan: the plan of a monitor.
        transforms: the transforms that act before the monitor.

    Raises:
        RuleError: such a transform exists; the message names the statistic.
    """
    asked = {stat for each in plan.rows_and_groups for stat in each.stats} & {"micro_cosine", "noise_scale"}
    if asked and any(bound.when == "step" for bound in transforms):
        raise RuleError(
            f"watch: {min(asked)!r} compares the gradient of the step with those of its micro-batches, and a transform of "
            "when='step' before this callback would change it; put StatsMonitor before GradientTransforms"
        )


def _refuse_optimizers(bound: BoundTransform, optimizers: Sequence[Any], scaled: bool) -> None:
    """Refuse optimizers with which a transform at the step cannot work."""
    for optimizer in optimizers:
        name = type(optimizer).__name__
        known = type(optimizer).__module__.startswith("torch.optim.") and not isinstance(optimizer, LBFGS)
        if bound.may_skip and not (known or getattr(optimizer, "skips_missing_gradients", False)):
            raise UnsupportedError(
                f"{bound.where}: {bound.name} skips a step by taking the gradients away, and {name} is not known to keep "
                "parameters without a gradient, and their state, unchanged. If it does, set skips_missing_gradients = True "
                "on it"
            )
        if scaled and unscales_itself(optimizer):
            raise UnsupportedError(
                f"{bound.where}: {name}(fused=True) unscales inside its own step, so gradients are still scaled when the rule "
                "would act; use fused=False or when='backward'"
            )
