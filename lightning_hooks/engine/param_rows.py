"""Which rows of a plan are about which parameter, and which of them are due."""

from __future__ import annotations

from torch import nn

from lightning_hooks.engine.participant import HasParameters
from lightning_hooks.engine.plan import Due, Plan, Row
from lightning_hooks.rules import MODULE_TENSORS


class ParamRows:
    """The rows of parameters, found by the objects that there are now.

    Args:
        plan: whose rows.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._serves = {param: update for update, param in plan.param_row_of.items()}
        self._rows: dict[str, dict[int, Row]] = {}
        self._due: dict[tuple[str, Due], dict[int, Row]] = {}
        self.renew()

    @property
    def of_state(self) -> list[str]:
        """The tensors of optimizer states that are watched: `state.exp_avg` and the like."""
        return [tensor for tensor in self._rows if tensor.startswith("state.")]

    def renew(self) -> None:
        """Find rows by the parameters that there are now."""
        self._rows.clear()
        self._due.clear()
        for row in self._plan.rows:
            if row.kind not in MODULE_TENSORS:
                self._rows.setdefault(row.tensor, {})[id(row.target.value)] = row

    def due(self, optimizer: HasParameters, tensor: str, schedules: Due) -> list[tuple[nn.Parameter, Row]]:
        """The parameters of an optimizer of which a tensor is due, with their rows.

        Args:
            optimizer: whose, in its order.
            tensor: which.
            schedules: those that are due.
        """
        if (tensor, schedules) not in self._due:
            rows = self._rows.get(tensor, {})
            kept = {key: row for key, row in rows.items() if self._is_due(row, schedules)}
            self._due[tensor, schedules] = rows if len(kept) == len(rows) else kept
        due = self._due[tensor, schedules]
        if not due:
            return []
        return [(p, due[id(p)]) for group in optimizer.param_groups for p in group["params"] if id(p) in due]

    def _is_due(self, row: Row, schedules: Due) -> bool:
        if row.due(schedules):
            return True
        served = self._serves.get(row.index)
        return served is not None and self._plan.rows[served].due(schedules)
