"""Facts of steps as plain values for a checkpoint. Lists of names that many steps share are saved once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from lightning_hooks.records.facts import GroupFacts, OptimizerFacts, StepFacts

Changes = list[tuple[int, StepFacts | None]]
"""Facts by the step from which they hold."""


def to_plain(changes: Sequence[tuple[int, StepFacts | None]]) -> dict[str, Any]:
    """The facts as plain values.

    Example:
        >>> facts = StepFacts((OptimizerFacts("SGD", (GroupFacts(0.1, 0.0, ("weight",)),)),))
        >>> from_plain(to_plain([(3, facts), (5, None)])) == [(3, facts), (5, None)]
        True
    """
    numbers: dict[tuple[str, ...], int] = {(): 0}

    def number(names: tuple[str, ...]) -> int:
        return numbers.setdefault(names, len(numbers))

    saved: list[list[Any]] = []
    for step, facts in changes:
        if facts is None:
            saved.append([step, None])
            continue
        optimizers = [
            [each.type, [[group.lr, group.weight_decay, number(group.params), group.strangers] for group in each.groups]]
            for each in facts.optimizers
        ]
        # `asdict` would copy the names of every group.
        others = asdict(replace(facts, optimizers=(), frozen=(), evaluating=()))
        others |= {"optimizers": optimizers, "frozen": number(facts.frozen), "evaluating": number(facts.evaluating)}
        saved.append([step, others])
    return {"names": [list(names) for names in numbers], "changes": saved}


def from_plain(state: Mapping[str, Any]) -> Changes:
    """The facts of `to_plain`; raises KeyError, TypeError, ValueError or IndexError if the state is damaged."""
    names = [tuple(map(str, each)) for each in state["names"]]
    changes: Changes = []
    for step, saved in state["changes"]:
        if saved is None:
            changes.append((int(step), None))
            continue
        optimizers = tuple(
            OptimizerFacts(str(kind), tuple(GroupFacts(lr, decay, names[i], int(more)) for lr, decay, i, more in groups))
            for kind, groups in saved["optimizers"]
        )
        others = dict(saved) | {"optimizers": optimizers}
        others |= {"frozen": names[saved["frozen"]], "evaluating": names[saved["evaluating"]]}
        changes.append((int(step), StepFacts(**others)))
    return changes
