"""Rules on teachers and target networks: such as are never synchronised, and such as are trained."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from lightning_hooks.health.evidence import Evidence
from lightning_hooks.health.memo import memo_of
from lightning_hooks.health.rule import HealthRule, Kind, Symptom
from lightning_hooks.health.rules.base import Needs, Obstacles, no_facts, no_optimizer, no_structure
from lightning_hooks.health.usage import is_named_copy, membership_of
from lightning_hooks.records.facts import Sighting, StepFacts, Structure

_TEACHERS: Final = frozenset({"teacher", "ema", "averaged", "frozen", "reference", "ref", "swa", "target", "targ"})
"""Words in the names of modules that no optimizer is to change."""


@dataclass(frozen=True, kw_only=True)
class TargetNeverSynchronised(HealthRule):
    """A target network began as a copy of another network and has never been written to, while that network has moved.

    The name of the copy says that it is a target: that of the module in the model, or of the attribute or global variable that
    holds it. It is a note until the loss shows harm, because a target may be fixed on purpose or synchronised rarely.

    Args:
        share: the share of the steps of the fit for which it must have stood still.
        least: the number of steps for which it must have stood still.
        unknown: that number where the end of the fit is not known.
    """

    patience: int = 1
    every_n_steps: int = 5
    share: float = 0.5
    least: int = 100
    unknown: int = 5000
    family: ClassVar[str] = "facts"
    kind: ClassVar[Kind] = "pattern"
    looks_for: ClassVar[tuple[str, ...]] = ("target-stands-still",)
    next_steps: ClassVar[tuple[str, ...]] = (
        "Look for the code that is to copy the weights, `target.load_state_dict(online.state_dict())` or `lerp_`, and whether "
        "its condition is ever true.",
        "Look whether it writes into another copy than the one that gives the targets.",
    )
    source: ClassVar[str] = "ours: a target that is not written to in half of a fit is hardly synchronised in the other half"
    consequence: ClassVar[str] = (
        "The model learns what the untrained network expects, so that values or features never get better than one such step."
    )
    false_alarm: ClassVar[str] = (
        "A target that is fixed on purpose, or copied less often than once in half of the fit, is told too. The finding is a "
        "note until the loss shows harm."
    )

    def counts(self, sighting: Sighting, facts: StepFacts | None, evidence: Evidence) -> bool:
        last = None if facts is None else facts.last_step
        return sighting.measured >= (self.unknown if last is None else max(self.share * last, self.least))


@dataclass(frozen=True, kw_only=True)
class TeacherTrained(HealthRule):
    """The step of an optimizer changes a teacher, target or average that is in evaluation mode, while the rest is trained.

    The name of the module says what it is. An optimizer that only holds such a module and never changes it is not told, since
    it skips parameters without gradients.
    """

    patience: int = 3
    every_n_steps: int = 5
    family: ClassVar[str] = "facts"
    obstacles: ClassVar[Obstacles] = (no_facts, no_optimizer, no_structure)
    needs: ClassVar[Needs] = (("update", "abs_max"),)
    next_steps: ClassVar[tuple[str, ...]] = (
        "Call the teacher within `torch.no_grad()`, and freeze it by `requires_grad_(False)`.",
        "Give the optimizer the parameters of the student only.",
    )
    source: ClassVar[str] = "a definition; at three steps, because code may load weights at single ones"
    consequence: ClassVar[str] = (
        "The teacher moves towards the student, so that the loss falls without the student learning what the teacher knew."
    )
    false_alarm: ClassVar[str] = (
        "A module whose name has such a word but that is to be trained, in evaluation mode on purpose, is told too. Rename it "
        "or accept the finding."
    )

    def can_run(self, evidence: Evidence) -> str | None:
        reason = super().can_run(evidence)
        structure = evidence.structure
        if reason is None and structure is not None and not _teachers(structure):
            return "no module is called a teacher, a target or an average"
        return reason

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        track, structure = evidence.track("update", "abs_max"), evidence.structure
        if track is None or structure is None:
            return
        owners = _teachers(structure)
        columns = [column for column, name in enumerate(track.names) if name in owners]
        if not columns:
            return
        for at in range(track.new.start, track.new.stop):
            step = int(track.steps[at])
            facts = evidence.facts_at(step)
            if facts is None or "" in facts.evaluating:
                continue
            evaluating, held = {*facts.evaluating}, membership_of(facts).optimizer_of
            moved: dict[str, list[str]] = {}
            known: dict[str, int] = {}
            for column in columns:
                name = track.names[column]
                if owners[name] in evaluating and name in held and not np.isnan(track.values[at, column]):
                    known[owners[name]] = known.get(owners[name], 0) + 1
                    if track.values[at, column] > 0:
                        moved.setdefault(owners[name], []).append(name)
            for teacher, names in moved.items():
                text = (
                    f"it is in evaluation mode, and the step of an optimizer changes {len(names)} of its {known[teacher]} "
                    "parameters"
                )
                yield Symptom(teacher, tensor="", step=step, measured=float(len(names)), threshold=0.0, text=text)


def _teachers(structure: Structure) -> dict[str, str]:
    """The teacher that holds each parameter, by its name; parameters of no teacher are left out."""
    memo = memo_of(structure)
    if "teachers" not in memo:
        memo["teachers"] = {each.name: teacher for each in structure.parameters if (teacher := _teacher_of(each.module))}
    teachers: dict[str, str] = memo["teachers"]
    return teachers


def _teacher_of(module: str) -> str:
    """The outermost module around a module, or it itself, whose own name is that of a teacher; empty if there is none."""
    parts = module.split(".")
    ends = [end for end, part in enumerate(parts, 1) if is_named_copy(part, _TEACHERS)]
    return ".".join(parts[: ends[0]]) if ends else ""


RULES: Final[tuple[HealthRule, ...]] = (TargetNeverSynchronised(), TeacherTrained())
"""The rules on teachers and target networks, with their defaults."""
