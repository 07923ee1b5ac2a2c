"""A monitor outside training: a whole run of validation, testing or predicting is one step."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

import torch

from lightning_hooks.engine.monitor.observer import Observer
from lightning_hooks.engine.plan.plan import Plan
from lightning_hooks.engine.plan.rows import Row, Rows
from lightning_hooks.errors import RuleError
from lightning_hooks.records.row_index import Due
from lightning_hooks.rules import FORWARD_TENSORS
from lightning_hooks.rules.schedule import EveryN

_ALWAYS: Final[Due] = frozenset({EveryN()})


class RunObserver(Observer):
    """Watches inputs and outputs of modules in every batch of a run, merged exactly.

    Args:
        plan: of the monitor; its rows of `input` and `output` are used, at every batch.
        stage: `validate`, `test` or `predict`.
        on_error: `raise` or `warn`.
        device: where the table lives.

    Raises:
        RuleError: no rule watches a tensor that exists outside training.
    """

    def __init__(self, plan: Plan, stage: str, *, on_error: str = "raise", device: torch.device | str = "cpu") -> None:
        super().__init__(forward_plan(plan), on_error=on_error, device=device)
        if not self.plan.rows:
            raise RuleError(f"stages: no rule watches 'input' or 'output' of modules, and {stage!r} has no gradients")
        self.stage = stage
        self.reports = False
        self.schedules = _ALWAYS

    def due(self, step: int, stage: str) -> Hashable | None:
        return _ALWAYS if stage == self.stage and not self.stopped else None

    def begin_step(self, step: int, stage: str, reporting: bool) -> None:
        self.note_order()

    def clear(self) -> None:
        """Empty the table for the next run."""
        self.table.clear()


def forward_plan(plan: Plan) -> Plan:
    """The rows of a plan that the forward pass fills, each at every batch.

    Args:
        plan: of a monitor.
    """
    kept = [row for row in plan.rows if row.kind in FORWARD_TENSORS and row.requests]
    new_index = {row.index: i for i, row in enumerate(kept)}
    rows = [Row(i, row.tensor, ((EveryN(), row.stats),), row.users, target=row.target) for i, row in enumerate(kept)]
    groups = [
        Row(
            len(rows) + i,
            group.tensor,
            ((EveryN(), group.stats),),
            group.users,
            group=group.name,
            members=tuple(new_index[member] for member in group.members),
        )
        for i, group in enumerate(group for group in plan.groups if group.kind in FORWARD_TENSORS)
    ]
    return Plan(Rows(rows), [], (EveryN(),), groups)
