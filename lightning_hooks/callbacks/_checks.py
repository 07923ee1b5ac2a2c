"""Checks: options and set-ups that a callback refuses, with the reason and an alternative."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import combinations, islice
from typing import TYPE_CHECKING, Any, Final

from lightning_hooks.callbacks._loggers import pinned_names
from lightning_hooks.engine.change.changer import Changer
from lightning_hooks.engine.participant import Participant
from lightning_hooks.engine.plan.plan import Plan
from lightning_hooks.errors import NoMatchError, RuleError, UnsupportedError, did_you_mean
from lightning_hooks.records.layout import Layout
from lightning_hooks.records.step_view import STAGE_PREFIX
from lightning_hooks.rules import parse_tensor

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

    from lightning_hooks.callbacks.monitor import StatsMonitor

# By name: Lightning's two packages have a class each, and DeepSpeed's cannot be imported where it is not installed.
_SHARDING: Final = {
    "FSDPStrategy": "FSDP flattens parameters and gradients and leaves each rank a slice of them, often an empty one: their "
    "statistics would be those of slices, a norm that of one rank, and hooks on them never fire",
    "DeepSpeedStrategy": "DeepSpeed keeps gradients, and with ZeRO stage 3 parameters, in buffers of its own: when the "
    "optimizer steps, .grad is empty or a slice, and a change of it is not used",
}
_MOST_COMBINATIONS: Final = 128  # of schedules: of seven, all
_INSTEAD: Final = "use ModelParallelStrategy (FSDP2) or DDPStrategy; rules on modules work here"


def refuse_unsupported(trainer: Trainer, rules: Iterable[tuple[str, Any, Iterable[str]]]) -> None:
    """Refuse rules whose result could not be correct with the strategy of a trainer.

    Args:
        trainer: whose strategy.
        rules: each with its name in messages, and its tensors.

    Raises:
        UnsupportedError: a rule on parameters that the strategy shards itself; one on gradients that flow through modules
            under a loss scale that the strategy hides.
    """
    names = [kind.__name__ for kind in type(trainer.strategy).__mro__]
    sharding = next((name for name in names if name in _SHARDING), None)
    if sharding is None:
        return
    scaled = sharding == "DeepSpeedStrategy" and str(trainer.precision).startswith("16")
    for where, rule, tensors in rules:
        if getattr(rule, "params", None) is not None:
            raise UnsupportedError(
                f"{where}.params: with {sharding} rules on parameters are not supported. {_SHARDING[sharding]}; {_INSTEAD}"
            )
        flowing = [tensor for tensor in tensors if parse_tensor(tensor)[0] in ("input_grad", "output_grad")]
        if scaled and flowing:
            raise UnsupportedError(
                f"{where}: {flowing[0]!r} with DeepSpeedStrategy in 16 bits is multiplied by a loss scale that DeepSpeed keeps "
                "to itself; use precision='bf16-mixed', or watch 'input' and 'output'"
            )


def check_options(scalars: list[Any], max_scalars: Any, prefix: Any, on_error: Any, max_overhead: Any) -> None:
    """Refuse invalid options of a monitor; each argument is the option of its name.

    Raises:
        RuleError: with what is allowed.
    """
    for i, pattern in enumerate(scalars):
        if not isinstance(pattern, str):
            raise RuleError(f"scalars[{i}] must be a string, got {pattern!r}")
    if isinstance(max_scalars, bool) or not isinstance(max_scalars, int) or max_scalars < 0:
        raise RuleError(f"max_scalars must be an integer of at least 0, got {max_scalars!r}")
    if not isinstance(prefix, str):
        raise RuleError(f"prefix must be a string, got {prefix!r}")
    if on_error not in ("raise", "warn"):
        hint = did_you_mean(str(on_error), ["raise", "warn"], 1)
        raise RuleError(f"on_error must be 'raise' or 'warn', got {on_error!r}{hint}")
    number = isinstance(max_overhead, (int, float)) and not isinstance(max_overhead, bool)
    if max_overhead is not None and not (number and 0 < max_overhead < 1):
        raise RuleError(f"max_overhead must be a share above 0 and below 1, or None, got {max_overhead!r}")


def refuse_changed_sums(plan: Plan, participants: Iterable[Participant]) -> None:
    """Refuse to compare a step's gradient with those of its micro-batches if a transform has changed it in between.

    Raises:
        RuleError: with the statistic.
    """
    asked = {stat for each in plan.asked for stat in each.stats} & {"micro_cosine", "noise_scale"}
    if asked and any(isinstance(p, Changer) and p.acts_at_step for p in participants):
        raise RuleError(
            f"watch: {min(asked)!r} compares the gradient of the step with those of its micro-batches, and a transform of "
            "when='step' before this callback would change it; put StatsMonitor before GradientTransforms"
        )


def refuse_common_tags(monitors: Iterable[tuple[StatsMonitor, Mapping[str, Plan]]]) -> None:
    """Refuse two monitors that write the same tag.

    Args:
        monitors: each with its plan in each stage. Of those with one prefix the first writes the global numbers of a stage.

    Raises:
        RuleError: with the first such tag.
    """
    several = list(monitors)
    leading: set[tuple[str, str]] = set()
    known: list[tuple[set[str], set[str]]] = []
    for monitor, plans in several:
        tags: set[str] = set()
        merged: set[str] = set()
        for stage, plan in plans.items():
            start = monitor.prefix + STAGE_PREFIX[stage]
            tags |= {f"{start}{each.tensor}_{stat}/{each.name}" for each in [*plan.rows, *plan.groups] for stat in each.stats}
            if (monitor.prefix, stage) not in leading:
                leading.add((monitor.prefix, stage))
                tags.add(f"{start}hooks/nonfinite")  # of the global numbers the one that is always written
            if len(several) > 1:
                merged |= _merged_tags(monitor, stage, plan)
        for others, others_merged in known:
            common, why = sorted(tags & others), ""
            if not common:
                common = sorted((tags | merged) & (others | others_merged))
                why = ", the name of rows that are merged because of max_scalars"
            if common:
                raise RuleError(
                    f"prefix: two StatsMonitors would write {common[0]!r} ({len(common)} tags in common){why}; give one of "
                    "them another prefix="
                )
        known.append((tags, merged))


def _merged_tags(monitor: StatsMonitor, stage: str, plan: Plan) -> set[str]:
    """The tags of rows that are merged along the module tree, at the steps at which some of the schedules are due."""
    pinned: set[str] = set()
    with suppress(NoMatchError):  # raised where the writer starts
        pinned = pinned_names(plan, monitor.scalars)
    sizes = range(len(plan.schedules), 0, -1)
    tags: set[str] = set()
    for due in islice((due for size in sizes for due in combinations(plan.schedules, size)), _MOST_COMBINATIONS):
        layout = Layout(plan.index, frozenset(due), stage, monitor.prefix, monitor.max_scalars, pinned)
        if layout.depth is None and len(due) == len(plan.schedules):
            break  # where all fits, each part fits
        tags |= layout.merged_tags
    return tags
