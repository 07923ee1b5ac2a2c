"""Rules on parts of a model that the model does not register."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from lightning_hooks.health.evidence import Evidence
from lightning_hooks.health.rule import HealthRule, Kind
from lightning_hooks.health.usage import is_named_copy
from lightning_hooks.records.facts import Sighting, StepFacts


@dataclass(frozen=True, kw_only=True)
class NotRegistered(HealthRule):
    """A plain list, tuple or dictionary holds modules or parameters that get gradients and that nothing trains.

    No optimizer, device move or checkpoint knows them. A list of one entry may hide a part on purpose, so that it is
    information until the loss stands still, and a list whose name says that it is a copy (`teacher`, `lpips`, …) is left out.
    """

    patience: int = 1
    every_n_steps: int = 5
    family: ClassVar[str] = "facts"
    kind: ClassVar[Kind] = "pattern"
    looks_for: ClassVar[tuple[str, ...]] = ("not-registered",)
    next_steps: ClassVar[tuple[str, ...]] = (
        "Put modules into an `nn.ModuleList` or `nn.ModuleDict`, and parameters into an `nn.ParameterList`, before the "
        "optimizer is created.",
        "If the part is to stay as it is, call `requires_grad_(False)` on it.",
    )
    source: ClassVar[str] = "a definition; over twelve steps, because a critic may be trained at every fifth"
    consequence: ClassVar[str] = (
        "The modules are trained by no optimizer, stay on their first device, and are missing in checkpoints."
    )
    false_alarm: ClassVar[str] = (
        "A list may hide a part from the optimizer on purpose. Freeze the part with `requires_grad_(False)`, and the finding "
        "ends."
    )

    def counts(self, sighting: Sighting, facts: StepFacts | None, evidence: Evidence) -> bool:
        return not any(map(is_named_copy, sighting.rows))


RULES: Final[tuple[HealthRule, ...]] = (NotRegistered(),)
"""The rules on registration, with their defaults."""
