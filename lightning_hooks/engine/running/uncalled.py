"""Warns once, for all participants together, of modules that a rule matched and the first step of the rule did not call."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

from lightning_hooks.engine.participants.participant import Active, ModuleRule, Participant
from lightning_hooks.errors import listed


class Uncalled:
    """Warns of modules that were not called. A module is judged in the first step in which its rule acts, and not later.

    The modules of a rule that no user wrote are named only if none of them was called.

    Args:
        warned: the names that an earlier warning has named; a Trainer has one set for all its runs. Default: none.
    """

    def __init__(self, warned: set[str] | None = None) -> None:
        self._warned = set() if warned is None else warned
        self._steps: set[Active] = set()  # the kinds of steps that `warn` has checked
        self._judged: set[tuple[Participant, str, str]] = set()

    def forget(self) -> None:
        """Release the participants."""
        self._steps.clear()
        self._judged.clear()

    def warn(self, active: Active, called: set[int], left_out: bool = False) -> bool:
        """Warn at the end of a step. Returns whether a module was found that was not called.

        Args:
            active: the participants that acted in the step.
            called: the ids of the modules that were called.
            left_out: whether hooks have left out calls of modules, as no part of the step.
        """
        if active in self._steps:
            return False
        self._steps.add(active)
        idle: dict[str, tuple[str, dict[str, None]]] = {}  # name of a module -> its class, and its rules
        is_any_idle = False
        for participant, key in active:
            for rule in participant.module_rules(key):
                for name, kind in self._not_called(participant, rule, called):
                    is_any_idle = True
                    if rule.is_written or not _is_any_called(rule, called):
                        idle.setdefault(name, (kind, {}))[1][_shown(participant, rule)] = None
        new = {name: about for name, about in idle.items() if name not in self._warned}
        self._warned.update(new)
        if new:
            _warn(new, left_out=left_out)
        return is_any_idle

    def _not_called(self, participant: Participant, rule: ModuleRule, called: set[int]) -> Iterable[tuple[str, str]]:
        for target in rule.targets:
            judged = (participant, rule.where, target.name)
            if judged not in self._judged:
                self._judged.add(judged)
                if id(target.value) not in called:
                    yield target.name, type(target.value).__name__


def _is_any_called(rule: ModuleRule, called: set[int]) -> bool:
    return any(id(target.value) in called for target in rule.targets)


def _shown(participant: Participant, rule: ModuleRule) -> str:
    where = rule.where.removesuffix(".modules")
    return where if not participant.owner or participant.owner in where else f"{participant.owner}: {where}"


def _warn(idle: dict[str, tuple[str, dict[str, None]]], *, left_out: bool) -> None:
    groups: dict[str, list[str]] = {}
    for name, (kind, rules) in idle.items():
        groups.setdefault(f"{kind}; {', '.join(rules)}", []).append(name)
    shown = "; ".join(f"{listed(names)} ({of})" for of, names in groups.items())
    if left_out:
        warnings.warn(
            f"matched modules were not called in training in the first step: {shown}. They ran without gradients, and "
            "instrument leaves out such calls by default if the model is in evaluation mode; calls='all' measures them too",
            stacklevel=2,
        )
        return
    warnings.warn(
        f"matched modules were not called in the first step: {shown}. Usual reasons: the forward uses their weights directly, "
        "calls another method than forward, does not need them in this step, or is compiled as a part of a function (compile "
        "the module instead)",
        stacklevel=2,
    )
