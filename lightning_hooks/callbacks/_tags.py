"""Tags that two monitors would both write."""

from __future__ import annotations

from lightning_hooks.engine.plan import Plan
from lightning_hooks.errors import RuleError


def refuse_common_tags(plan: Plan, other: Plan) -> None:
    """Refuse that two monitors with one prefix write the same tag.

    Raises:
        RuleError: with the first such tag.
    """
    common = sorted(_tags(plan) & _tags(other))
    if common:
        raise RuleError(
            f"prefix: two StatsMonitors would write {common[0]!r} ({len(common)} tags in common); give one of them "
            "another prefix="
        )


def _tags(plan: Plan) -> set[str]:
    return {f"{row.tensor}_{stat}/{row.name}" for row in plan.rows for stat in row.stats}
