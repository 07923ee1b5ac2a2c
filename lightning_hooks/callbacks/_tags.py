"""Tags that two monitors would both write."""

from __future__ import annotations

from lightning_hooks.engine.plan.plan import Plan
from lightning_hooks.errors import RuleError


def tags_of(plan: Plan, prefix: str, summaries: bool) -> set[str]:
    """The tags of a monitor in one stage; of the global numbers the one that is always written.

    Args:
        plan: what it watches in that stage.
        prefix: that of the monitor and that of the stage.
        summaries: whether it writes the global numbers.
    """
    tags = {f"{prefix}{each.tensor}_{stat}/{each.name}" for each in [*plan.rows, *plan.groups] for stat in each.stats}
    return tags | {f"{prefix}hooks/nonfinite"} if summaries else tags


def refuse_common_tags(tags: set[str], others: set[str]) -> None:
    """Refuse that two monitors write the same tag.

    Raises:
        RuleError: with the first such tag.
    """
    common = sorted(tags & others)
    if common:
        raise RuleError(
            f"prefix: two StatsMonitors would write {common[0]!r} ({len(common)} tags in common); give one of them "
            "another prefix="
        )
