"""Rules on the order of the loop: what is cleared, clipped and stepped, and when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from lightning_hooks.health.rule import HealthRule


@dataclass(frozen=True, kw_only=True)
class GradientsKept(HealthRule):
    """Gradients that an optimizer has used are still there when the next ones are added to them.

    It is looked at in the first twelve steps, by the writes to the gradients, so that no number is read. Gradients that are
    scaled down in place of being cleared are written to, and are not told.
    """

    patience: int = 1
    every_n_steps: int = 5
    family: ClassVar[str] = "facts"
    looks_for: ClassVar[tuple[str, ...]] = ("gradients-kept",)
    next_steps: ClassVar[tuple[str, ...]] = ("Call `zero_grad()` of each optimizer before the backward pass of its loss.",)
    source: ClassVar[str] = "a definition; at three steps, because a loop may begin in the middle of an accumulation"


RULES: Final[tuple[HealthRule, ...]] = (GradientsKept(),)
"""The rules on the order of the loop, with their defaults."""
