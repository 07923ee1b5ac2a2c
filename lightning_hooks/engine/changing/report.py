"""What a transform did in a step: norm before and after, cosine between them, and whether it changed anything.

Norms come from the moments that the kernels measure in one pass. If the transform `keeps_direction`, the cosine follows from
the norms. For any other transform the product of the tensors before and after is needed, and so is a copy of tensors that the
transform overwrites.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lightning_hooks.engine.changing.sums import (
    EXACT,
    Before,
    Sums,
    measured,
    on_host,
    shared,
    sums_of_any,
    sums_of_factor,
    sums_of_scaled,
)
from lightning_hooks.errors import RuleError


@dataclass(frozen=True)
class Counts:
    """The counts of a report in a checkpoint.

    Args:
        reported_steps: the steps that were reported.
        acted_steps: those of them in which the transform changed anything.

    Raises:
        RuleError: no report has such counts.
    """

    reported_steps: int
    acted_steps: int

    def __post_init__(self) -> None:
        if not 0 <= self.acted_steps <= self.reported_steps:
            raise RuleError(
                f"acted_steps must be from 0 to reported_steps, got {self.acted_steps} of {self.reported_steps} steps"
            )


class Report:
    """Adds up the calls of a step. Sums of tensors on another device stay on the device until the step ends."""

    def __init__(self, keeps_direction: bool) -> None:
        self.keeps_direction = keeps_direction
        self.reported_steps = 0
        self.acted_steps = 0
        self._calls: list[Sums] = []
        self._device: torch.device | None = None
        self._is_sharded = False

    def begin(self) -> None:
        self._calls = []

    def before(self, tensors: Sequence[Tensor], *, owned: bool) -> Before:
        """Measure or copy tensors before they are passed to the transform, which may overwrite them if they are `owned`."""
        if self.keeps_direction and all(tensor.dtype in EXACT for tensor in tensors) and (owned or _are_contiguous(tensors)):
            return measured(tensors)
        return [tensor.clone() if owned else tensor for tensor in tensors]

    def after(
        self,
        before: Before,
        results: Sequence[Tensor],
        *,
        factor: Tensor | float | None = None,
        shares: Sequence[float] | None = None,
    ) -> None:
        """Add a call to the step.

        Args:
            before: the result of `before` for the same tensors.
            results: the tensors that the transform returned.
            factor: the number by which the transform multiplied all of them; None if it does not report such a number.
            shares: for shards, the factor of the sums over each tensor, see `share_of`; sums are then added up over ranks when
                the step ends. None if every rank has the whole tensors.
        """
        self._is_sharded = shares is not None
        self._device = results[0].device
        if isinstance(before, list):
            self._calls.append(sums_of_any(before, results, shares))
        elif factor is None:
            self._calls.append(sums_of_scaled(shared(before, shares), shared(measured(results), shares)))
        else:
            self._calls.append(sums_of_factor(shared(before, shares).squares, factor))

    def finish(self) -> dict[str, float]:
        """The report of the step, name to value; empty if the transform was not called. Collective for sharded tensors."""
        if not self._calls:
            return {}
        totals = on_host(self._calls)
        self._calls = []
        if self._is_sharded:
            over_ranks = torch.tensor(totals, dtype=torch.float64, device=self._device)
            torch.distributed.all_reduce(over_ranks)
            totals = over_ranks.tolist()
        before, after, product, acted = totals
        self.reported_steps += 1
        self.acted_steps += bool(acted)
        out = {"norm_before": before**0.5, "norm_after": after**0.5, "acted": self.acted_steps / self.reported_steps}
        if before > 0 and after > 0:
            out["cosine"] = product / (before**0.5 * after**0.5)
        return out

    @property
    def counts(self) -> Counts:
        """The counts, for a checkpoint."""
        return Counts(self.reported_steps, self.acted_steps)

    def continue_from(self, counts: Counts) -> None:
        """Continue from the counts of a checkpoint."""
        self.reported_steps, self.acted_steps = counts.reported_steps, counts.acted_steps


def _are_contiguous(tensors: Sequence[Tensor]) -> bool:
    """Whether results computed from these tensors keep the order of elements in memory, and so equal moments."""
    return all(tensor.layout is not torch.strided or tensor.is_contiguous() for tensor in tensors)


def keeps_direction(transform: Any) -> bool:
    """Whether a transform declares `keeps_direction`. A subclass with a `__call__` of its own has to declare it again."""
    classes = type(transform).__mro__
    declared, called = (
        next((i for i, each in enumerate(classes) if name in vars(each)), None) for name in ("keeps_direction", "__call__")
    )
    if declared is None or called is None or declared > called:
        return False
    return bool(getattr(transform, "keeps_direction", False))
