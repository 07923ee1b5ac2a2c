"""All gradients of a step together, at the steps at which no rule measures gradients: one call of the kernel an optimizer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from lightning_hooks.plan.plan import Plan
from lightning_hooks.plan.rows import GRADIENT, Due
from lightning_hooks.stats import kernels
from lightning_hooks.stats.moments import merge_groups, rescale
from lightning_hooks.stats.processes import rank
from lightning_hooks.tensor_kinds import elements, is_sharded


class WholeGradient:
    """Reads the gradients that the optimizers of a step hold, without waiting for a device.

    Args:
        plan: the plan of a table.
        ranks: the number of ranks whose tables are merged.

    Attributes:
        row: of the whole gradient; None if the plan has none.
    """

    def __init__(self, plan: Plan, ranks: int) -> None:
        self.row = plan.whole_row(GRADIENT)
        self._reads_shared = ranks == 1 or rank() == 0
        self._is_due: dict[Due, bool] = {}
        # The moments by the id of an optimizer of the step: LBFGS evaluates its gradients several times.
        self._read: dict[int, Tensor] = {}

    def clear(self) -> None:
        """Begin a step."""
        self._read.clear()

    def is_due(self, plan: Plan, due: Due) -> bool:
        """Whether no gradient of a plan is due, so that the norm of all of them does not follow from rows."""
        if due not in self._is_due:
            self._is_due[due] = not any(row.tensor == "grad" and row.due(due) for row in plan.rows)
        return self._is_due[due]

    def read(self, optimizer: Optimizer, scale: Tensor | None) -> Tensor | None:
        """The moments of the gradients of all optimizers of the step that were read so far, float64 [9]; None without any.

        Args:
            optimizer: steps next.
            scale: the loss scale by which its gradients are still multiplied; None if they are not.
        """
        gradients = self._gradients(optimizer)
        moments = kernels.merged_in_host(gradients) if gradients else None
        if moments is None:
            moments = _measured(gradients)
        if moments is not None:
            self._read[id(optimizer)] = moments if scale is None else rescale(moments, scale.double().reciprocal())
        read = [*self._read.values()]
        return read[0] if len(read) == 1 else _merged([each[None] for each in read]) if read else None

    def _gradients(self, optimizer: Optimizer) -> list[Tensor]:
        """The gradients that this rank counts: of a gradient that all ranks hold, the first rank counts all."""
        held = [parameter.grad for group in optimizer.param_groups for parameter in group["params"] if parameter.requires_grad]
        return [each for each in held if each is not None and (self._reads_shared or is_sharded(each))]


def _measured(gradients: Sequence[Tensor]) -> Tensor | None:
    """The moments of all gradients together, float64 [9] on one of their devices; None without any element."""
    by_device: dict[torch.device, list[Tensor]] = {}
    for stored, _ in filter(None, map(elements, gradients)):
        if stored.numel():
            by_device.setdefault(stored.device, []).append(stored)
    return _merged([kernels.measure_many(tensors) for tensors in by_device.values()]) if by_device else None


def _merged(moments: list[Tensor]) -> Tensor:
    """The moments of all rows of several tables, [9], on one of their devices."""
    # Copy to an accelerator if there is one: a copy from it to the host would wait for it.
    device = next((each.device for each in moments if each.device.type != "cpu"), moments[0].device)
    return merge_groups(torch.cat([each.to(device, non_blocking=True) for each in moments]))
