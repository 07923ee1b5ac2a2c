"""What an event file states about how a run trained: its optimizers, the schedules of its rules, the parameters of its model.

The classes in `records/` and `rules/` say the same, but they need torch, which the page does without.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from lightning_hooks.dashboard.facts import is_count, json_object


class TrainingFacts(NamedTuple):
    """Which parameters are trained from a step on.

    Args:
        step: the first step for which the facts hold.
        frozen: the parameters without `requires_grad`.
        held: the parameters that optimizers hold; None if the run has no optimizer.
    """

    step: int
    frozen: frozenset[str]
    held: frozenset[str] | None


def training_facts(texts: Iterable[tuple[int, str]]) -> list[TrainingFacts]:
    """The facts at each step at which they changed, from what `records/saved_facts.py` writes. Damaged texts are ignored.

    Example:
        >>> training_facts([(0, '{"frozen": ["a"], "members": [["SGD", [[["b"], 0]]]]}'), (5, '{"rates": [[[0.1, 0]]]}')])
        [TrainingFacts(step=0, frozen=frozenset({'a'}), held=frozenset({'b'}))]
    """
    found: list[TrainingFacts] = []
    frozen: frozenset[str] = frozenset()
    held: frozenset[str] | None = None
    for step, text in texts:
        # Parse only texts that hold one of these keys.
        # In most runs there is a text for every step, because the learning rate changes.
        if '"frozen"' not in text and '"members"' not in text:
            continue
        known = json_object([text])
        if "frozen" in known:
            frozen = frozenset(_texts(known["frozen"]))
        if "members" in known:
            held = _held(known["members"])
        if not found or (frozen, held) != found[-1][1:]:
            found.append(TrainingFacts(step, frozen, held))
    return found


def _held(optimizers: Any) -> frozenset[str] | None:
    """The parameters of all groups of `[[type, [[names, strangers], …]], …]`; None if there is no optimizer."""
    if not isinstance(optimizers, list) or not optimizers:
        return None
    groups = [group for each in optimizers if _is_pair(each) and isinstance(each[1], list) for group in each[1]]
    return frozenset(name for group in groups if _is_pair(group) for name in _texts(group[0]))


class Schedule(NamedTuple):
    """The steps at which a rule measures: those of `rules/schedule.py`, which needs torch.

    Args:
        every: the interval.
        first: the first step that can be due.
        last: the last step that can be due; None for no last step.
        steps: an explicit list of steps instead of an interval.
    """

    every: int = 1
    first: int = 0
    last: int | None = None
    steps: tuple[int, ...] | None = None

    @property
    def is_every_step(self) -> bool:
        """Whether no step is left out."""
        return self == Schedule()

    @property
    def text(self) -> str:
        """For example `measured every 10 steps, from step 100 on`.

        Example:
            >>> Schedule(10, 100).text, Schedule(last=5).text, Schedule(steps=(1, 2)).text
            ('measured every 10 steps, from step 100 on', 'measured at every step, until step 5', 'measured at listed steps')
        """
        if self.steps is not None:
            return "measured at listed steps"
        text = "measured at every step" if self.every == 1 else f"measured every {self.every:,} steps"
        begin = f", from step {self.first:,} on" if self.first else ""
        return text + begin + ("" if self.last is None else f", until step {self.last:,}")


def row_schedules(indices: Iterable[Mapping[str, Any]], tensor: str) -> dict[str, list[Schedule]]:
    """The schedules by which the rows of a training table are measured, by name, from the row indices in an event file.

    Args:
        indices: what `records/saved_index.py` writes. Rows of a damaged index have no schedule.
        tensor: with the prefix of the monitor.
    """
    found: dict[str, dict[Schedule, None]] = {}
    for index in indices:
        prefix, names, requests = index.get("prefix"), _texts(index.get("names")), index.get("requests")
        if index.get("stage") != "train" or not isinstance(prefix, str) or not isinstance(requests, list):
            continue
        for each in (*_list(index.get("alike")), *_list(index.get("groups"))):
            if not isinstance(each, list) or len(each) != 3 or f"{prefix}{each[0]}" != tensor:
                continue
            _, number, rows = each
            if not is_count(number) or number >= len(requests) or not isinstance(rows, list):
                continue
            schedules = [_schedule(pair[0]) for pair in requests[number] if _is_pair(pair) and pair[1]]
            for row in rows:
                if is_count(row) and row < len(names):
                    found.setdefault(names[row], {}).update(dict.fromkeys(filter(None, schedules)))
    return {name: [*schedules] for name, schedules in found.items()}


def _schedule(saved: Any) -> Schedule | None:
    if isinstance(saved, list):
        return Schedule(steps=tuple(filter(is_count, saved)))
    if not isinstance(saved, Mapping):
        return None
    every, first, last = saved.get("every", 1), saved.get("first", 0), saved.get("last")
    is_valid = is_count(every) and every and is_count(first) and (last is None or is_count(last))
    return Schedule(every, first, last) if is_valid else None


def parameters_of(indices: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The parameters of the model, each with the module that holds it, from the row indices in an event file."""
    found: dict[str, str] = {}
    for index in indices:
        structure = index.get("structure")
        listed = structure.get("parameters") if isinstance(structure, Mapping) else None
        for each in _list(listed):
            if isinstance(each, list) and len(each) > 1 and isinstance(each[0], str) and isinstance(each[1], str):
                found[each[0]] = each[1]
    return found


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _texts(value: Any) -> list[str]:
    return [each for each in _list(value) if isinstance(each, str)]
