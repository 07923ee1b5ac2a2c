"""What rules on modules and parameters have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from lightning_hooks.health.evidence import Evidence, Track
from lightning_hooks.health.roles import NO_STRUCTURE, roles_of
from lightning_hooks.health.rule import HealthRule

Needs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class StructureRule(HealthRule):
    """A rule that must know what modules and parameters are for."""

    def can_run(self, evidence: Evidence) -> str | None:
        """As of `HealthRule`."""
        return NO_STRUCTURE if roles_of(evidence) is None else super().can_run(evidence)


WITNESS: Final = 32
"""The number of losses that a second witness judges: 60 steps, if all of the first 25 are watched and then every fifth."""


def is_new(track: Track) -> bool:
    """Whether a statistic was measured at a step that the rule has not judged: units are measured at every tenth step."""
    return bool(np.isfinite(track.values[track.new]).any())
