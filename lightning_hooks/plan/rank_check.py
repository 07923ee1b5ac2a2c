"""Check that all ranks have the same plan, because their tables are merged row by row."""

from __future__ import annotations

import torch

from lightning_hooks.errors import RuleError, listed
from lightning_hooks.plan.plan import Plan
from lightning_hooks.plan.rows import WHOLE
from lightning_hooks.stats.processes import have_the_same, rank, world_size


def check_ranks_agree(plan: Plan, device: torch.device | str) -> None:
    """Raise on every rank if the plans of the ranks differ. With several ranks, a collective.

    Args:
        plan: the plan of this rank.
        device: the device of the tensors that ranks exchange.

    Raises:
        RuleError: another rank has other rows, statistics or schedules.
    """
    asked = [(each.tensor, each.name, each.requests) for each in plan.rows_and_groups]
    if world_size() == 1 or have_the_same(repr(asked), device):
        return
    rows = [row for row in plan.rows if row.tensor not in WHOLE]
    names = listed(f"{row.tensor} of {row.name}" for row in rows) or "none"
    raise RuleError(
        f"watch: the processes watch different rows or statistics, or at different steps: process {rank()} watches "
        f"{len(rows)} ({names}). Their tables are merged row by row, so every process needs the same model and the same "
        "callbacks"
    )
