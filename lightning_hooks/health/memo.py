"""What health rules have computed from a structure or from the facts of a step, kept on that object."""

from __future__ import annotations

from typing import Any

from lightning_hooks.attached import AttachedState, attached_to
from lightning_hooks.records.facts import StepFacts, Structure


class _Memo(AttachedState):
    def __init__(self) -> None:
        self.values: dict[str, Any] = {}


def memo_of(owner: Structure | StepFacts) -> dict[str, Any]:
    """The values computed from an object, by name. All views of a run share one structure, and all rules of a step its facts.

    Example:
        >>> facts = StepFacts()
        >>> memo_of(facts)["known"] = 1
        >>> memo_of(facts), memo_of(StepFacts())
        ({'known': 1}, {})
    """
    return attached_to(owner, _Memo).values
