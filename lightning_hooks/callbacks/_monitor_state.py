"""MonitorState: what a checkpoint keeps of a callback that watches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lightning_hooks.engine.lookouts.saved_seam import Seam
from lightning_hooks.engine.participants.overhead import MAX_FACTOR
from lightning_hooks.engine.watching.share_views import Averages, check_averages
from lightning_hooks.errors import RuleError
from lightning_hooks.records.disk_budget import DiskState


@dataclass(frozen=True)
class MonitorState:
    """What a checkpoint keeps of a callback that watches.

    Args:
        noise: by row, the averages from which the noise scale is computed.
        factor: by which `max_overhead` has made intervals longer.
        diagnosis: of a `HealthMonitor`, as its reporter saves it; None without one.
        seam: the optimizers and schedules when the checkpoint was saved; None without a `HealthMonitor`.
        disk: of the budget of the run.

    Raises:
        RuleError: a value that no monitor has saved.
    """

    noise: Mapping[str, Averages] = field(default_factory=dict)
    factor: int = 1
    diagnosis: Mapping[str, Any] | None = None
    seam: Seam | None = None
    disk: DiskState = field(default_factory=DiskState)

    def __post_init__(self) -> None:
        check_averages(self.noise)
        if not 1 <= self.factor <= MAX_FACTOR:
            raise RuleError(f"factor must be an integer from 1 to {MAX_FACTOR}, got {self.factor}")
