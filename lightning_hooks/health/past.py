"""What the steps before findings showed: causes quote it as long as they stand, also if these steps have left the window."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from lightning_hooks.health.cause_rule import CauseRule
from lightning_hooks.health.evidence import Evidence
from lightning_hooks.health.steps_before import BEFORE


@dataclass(frozen=True)
class Shown:
    """What the steps before findings showed of one cause.

    Args:
        begin: the first step of the findings.
        holds: whether they meet the `history` of the cause.
        detail: what its `detail` says of them; empty if its history does not hold.
    """

    begin: int
    holds: bool
    detail: str


class Past:
    """The answers of causes about the steps before their findings. Each question is asked once, while the steps are known.

    Example:
        >>> rule = CauseRule(name="Tired", message="", required=("LossSpike",), detail=lambda evidence, step: f" Until {step}.")
        >>> past = Past()
        >>> past.shown(rule, Evidence(), 3).detail, Past.from_state(past.state()).shown(rule, Evidence(), 3).detail
        (' Until 3.', ' Until 3.')
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], dict[int, Shown]] = {}

    def shown(self, rule: CauseRule, evidence: Evidence, begin: int) -> Shown:
        """What the steps before findings show of a cause.

        A no is asked again, since later steps may show more, until the steps before the findings have left the window. Then the
        answer is that for the nearest step that was asked before: other findings of the same fault began there.

        Args:
            rule: the cause.
            evidence: of the run.
            begin: the first step of the findings.
        """
        if rule.history is None and rule.detail is None:
            return Shown(begin, True, "")
        known = self._known.setdefault((rule.name, rule.message), {})
        is_final = begin in known and known[begin].holds
        if not is_final and not (known and _has_left(evidence, begin)):
            holds = rule.history is None or rule.history(evidence, begin)
            known[begin] = Shown(begin, holds, rule.detail(evidence, begin) if holds and rule.detail else "")
        return known[begin] if begin in known else known[min(known, key=lambda step: abs(step - begin))]

    def forget_from(self, step: int) -> None:
        """Forget the answers about findings since this step, because training went back to it."""
        for key, known in self._known.items():
            self._known[key] = {begin: shown for begin, shown in known.items() if begin < step}

    def state(self) -> list[Any]:
        """The answers as plain values."""
        return [[*key, each.begin, each.holds, each.detail] for key, known in self._known.items() for each in known.values()]

    @classmethod
    def from_state(cls, state: Iterable[Sequence[Any]]) -> Past:
        """The answers of `state`; raises ValueError or TypeError if the state is damaged."""
        past = cls()
        for name, message, begin, holds, detail in state:
            known = past._known.setdefault((str(name), str(message)), {})
            known[int(begin)] = Shown(int(begin), bool(holds), str(detail))
        return past


def _has_left(evidence: Evidence, begin: int) -> bool:
    """Whether the window does not hold the steps before a step any more."""
    return bool(len(evidence.steps)) and int(evidence.steps[0]) > max(evidence.first_step, begin - BEFORE)
