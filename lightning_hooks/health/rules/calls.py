"""Rules on which modules are called: one that runs no longer, and one that has never run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from lightning_hooks.health.evidence import Evidence
from lightning_hooks.health.roles import Mask, roles_of
from lightning_hooks.health.rule import HealthRule, Severity, Symptom
from lightning_hooks.health.rules.base import Needs, Obstacles, no_optimizer, no_structure
from lightning_hooks.health.track import Track
from lightning_hooks.health.usage import gap_at_end, membership_of


@dataclass(frozen=True, kw_only=True)
class NotCalledAnyMore(HealthRule):
    """A module with parameters that an optimizer holds ran at every step and runs no longer.

    If other modules begin to run at the same time, training has changed to another phase on purpose.

    Args:
        least: the number of steps at which it does not run.
        history: the number of steps, all from the start of the run or of the window, at which it ran.
    """

    least: int = 2
    history: int = 30
    patience: int = 1
    every_n_steps: int = 5
    family: ClassVar[str] = "facts"
    obstacles: ClassVar[Obstacles] = (no_optimizer, no_structure)
    needs: ClassVar[Needs] = (("output", "count"),)
    next_steps: ClassVar[tuple[str, ...]] = (
        "Look at the branches of `forward` that depend on the step, the epoch or the data.",
        "If it is left out on purpose from this step on, freeze its parameters, or accept the finding.",
    )
    source: ClassVar[str] = "ours: 30 steps without a gap at any module, so that layers that are dropped at random do not count"
    consequence: ClassVar[str] = "The module stops learning at this step, and its optimizer may still decay its weights."
    false_alarm: ClassVar[str] = (
        "A training with phases is left out if other modules start at the same time. A phase that only drops a module should "
        "be accepted."
    )

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        output, facts = evidence.track("output", "count"), evidence.facts
        if output is None or facts is None or evidence.structure is None:
            return
        output = evidence.of_rows(output)
        if len(output.steps) < self.history + self.least:
            return
        stopped = {symptom.row: symptom for symptom in self._stopped(evidence, output)}
        yield from stopped.values()
        # Once the window does not hold the steps at which a module ran, only a finding tells that it did.
        for name, since in evidence.standing.items():
            if name not in stopped and name in output.names and not self._runs(output, name):
                gap, text = evidence.step - since + 1.0, f"it has not run since step {since}"
                yield Symptom(name, tensor="", step=evidence.step, measured=gap, threshold=float(self.least), text=text)

    def _runs(self, output: Track, name: str) -> bool:
        return bool((output.values[-self.least :, output.names.index(name)] > 0).any())

    def _stopped(self, evidence: Evidence, output: Track) -> Iterable[Symptom]:
        """The modules that ran at each step of the window and then at none."""
        ran = output.values > 0
        absent = np.flatnonzero(~ran[-self.least :].any(axis=0) & ran[: -self.least].any(axis=0)).tolist()
        if not absent or not ran[-1].any():
            return
        held = _modules_held(evidence)
        before = len(ran) - self.least
        if _has_gaps(ran[: before - self.least]):
            return
        for column in absent:
            gap = gap_at_end(ran[:, column])
            before, name = len(ran) - gap, output.names[column]
            if before < self.history or not ran[:before, column].all() or name not in held:
                continue
            first_runs = np.where(ran.any(axis=0), ran.argmax(axis=0), -1)
            if (np.abs(first_runs - before) <= self.least).any():
                continue
            begin = int(output.steps[before])
            text = f"it ran at each of the {before} steps before, and has not run since step {begin}"
            yield Symptom(
                name, tensor="", step=evidence.step, measured=float(gap), threshold=float(self.least), text=text, since=begin
            )


@dataclass(frozen=True, kw_only=True)
class NeverCalled(HealthRule):
    """A module with parameters that an optimizer holds has never run. An unused head is no fault, so this is information.

    A module whose parameters get gradients is used without being called, as the output projection of nn.MultiheadAttention.

    Args:
        least: the number of steps of the run.
    """

    severity: Severity = Severity.INFO
    least: int = 5
    patience: int = 1
    every_n_steps: int = 5
    family: ClassVar[str] = "facts"
    obstacles: ClassVar[Obstacles] = (no_optimizer, no_structure)
    needs: ClassVar[Needs] = (("output", "count"), ("grad", "nonfinite"))
    next_steps: ClassVar[tuple[str, ...]] = (
        "If the model should use the module, look for it in `forward`.",
        "Otherwise leave its parameters out of the optimizer.",
    )
    source: ClassVar[str] = "a definition: no threshold"
    consequence: ClassVar[str] = (
        "The parameters are never trained. If the model was meant to use the module, it works without it."
    )
    false_alarm: ClassVar[str] = (
        "A head that is kept for later use is common, so that the finding is information. It is not told if parameters of the "
        "module get gradients."
    )

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        output = evidence.track("output", "count")
        if output is None:
            return
        output = evidence.of_rows(output)
        steps = output.steps
        if len(steps) < self.least:
            return
        ran = (output.values > 0).any(axis=0)
        if not ran.any() or ran.all():
            return
        unused = _modules_held(evidence) - _modules_with_gradient(evidence)
        for column in np.flatnonzero(~ran).tolist():
            name = output.names[column]
            if name in unused and (evidence.holds_start or name in evidence.standing):
                text = f"an optimizer holds its parameters, and it has not run in {len(steps)} steps"
                yield Symptom(
                    name,
                    tensor="",
                    step=evidence.step,
                    measured=0.0,
                    threshold=1.0,
                    text=text,
                    since=evidence.first_step,
                )


def _modules_held(evidence: Evidence) -> set[str]:
    """The modules with a parameter of their own that an optimizer holds and that is not frozen."""
    facts, structure = evidence.facts, evidence.structure
    if facts is None or structure is None:
        return set()
    held, frozen = membership_of(facts).optimizer_of, set(facts.frozen)
    return {each.module for each in structure.parameters if each.name in held and each.name not in frozen}


def _modules_with_gradient(evidence: Evidence) -> set[str]:
    """The modules of which a parameter has had a gradient."""
    grad, roles = evidence.track("grad", "nonfinite"), roles_of(evidence)
    if grad is None or roles is None:
        return set()
    columns = np.flatnonzero(np.any(~np.isnan(grad.values), axis=0)).tolist()
    return set(roles.owners(tuple(grad.names[column] for column in columns)))


def _has_gaps(ran: Mask) -> bool:
    """Whether a module has run again after steps at which it did not run."""
    starts = np.logical_and(ran[1:], ~ran[:-1]).sum(axis=0) + ran[:1].sum(axis=0)
    return bool((starts > 1).any())


RULES: Final[tuple[HealthRule, ...]] = (NotCalledAnyMore(), NeverCalled())
"""The rules on calls of modules, with their defaults."""
