"""What ranks watch must be the same on all: their tables are merged row by row."""

from __future__ import annotations

import torch

from lightning_hooks.errors import RuleError, listed
from lightning_hooks.plan.plan import Plan
from lightning_hooks.stats.processes import have_the_same, rank, world_size


def refuse_other_rows(plan: Plan, device: torch.device | str) -> None:
    """Refuse plans that differ between ranks, on all of them. Collective, with several ranks.

    Args:
        plan: of this rank.
        device: of the tensors that ranks exchange.

    Raises:
        RuleError: other rows or statistics on another rank, or other steps.
    """
    asked = [(each.tensor, each.name, each.requests) for each in plan.rows_and_groups]
    if world_size() == 1 or have_the_same(repr(asked), device):
        return
    names = listed(f"{row.tensor} of {row.name}" for row in plan.rows) or "none"
    raise RuleError(
        f"watch: the processes watch different rows or statistics, or at different steps: process {rank()} watches "
        f"{len(plan.rows)} ({names}). Their tables are merged row by row, so every process needs the same model and the same "
        "callbacks"
    )
