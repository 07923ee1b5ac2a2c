"""Rules on numbers that cannot be right whatever the loss does: no gradient at all, an input of zeros."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from lightning_hooks.health.evidence import Evidence
from lightning_hooks.health.roles import Mask, roles_of
from lightning_hooks.health.rule import HealthRule, Symptom, missing, symptoms_where
from lightning_hooks.health.rules.base import (
    LASTING,
    Needs,
    Obstacles,
    all_the_same,
    held_for_steps,
    no_optimizer,
    no_structure,
    updates_before,
)
from lightning_hooks.health.usage import gap_at_end, is_named_copy


@dataclass(frozen=True, kw_only=True)
class ZeroGradients(HealthRule):
    """The optimizer steps, and no parameter has a gradient other than 0.

    All gradients are exactly 0 at ten updates in a row; or no parameter has one at all, at ten updates. It is no fault if the
    loss has fallen to exactly 0, since all is learned then.

    Args:
        least: the number of updates.
    """

    least: int = LASTING
    patience: int = 1
    every_n_steps: int = 5
    family: ClassVar[str] = "gradients"
    obstacles: ClassVar[Obstacles] = (no_optimizer,)
    needs: ClassVar[Needs] = (("grad", "nonfinite"), ("grad", "abs_max"), ("update", "nonfinite"))
    next_steps: ClassVar[tuple[str, ...]] = (
        "If no parameter has a gradient, search for `zero_grad()` between `backward()` and `step()`.",
        "If gradients are 0, look at what stands before the loss: a ReLU at the output, a limit that every output exceeds, "
        "targets that are all ignored, `zero_infinity`.",
    )
    source: ClassVar[str] = "a definition; at ten updates, because branches that start at zero and single batches may have none"

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        largest = evidence.track("grad", "abs_max")
        if largest is None:
            return
        with np.errstate(invalid="ignore"):
            if bool((evidence.new_values(largest) > 0).any(axis=1).all()):
                return
        count, update = evidence.track("grad", "nonfinite"), evidence.track("update", "nonfinite")
        if count is None or update is None:
            return
        updates = np.flatnonzero(~np.isnan(update.values).all(axis=1) & self._are_asked_for(evidence))
        with np.errstate(invalid="ignore"):
            has: Mask = np.any((largest.values[updates] > 0) | (count.values[updates] > 0), axis=1)
        is_missing: Mask = np.all(np.isnan(count.values[updates]), axis=1)
        learned = self._is_learned(evidence)[updates]
        for end, at in enumerate(updates.tolist()):
            if at < largest.new.start or has[end]:
                continue
            row, missing = gap_at_end(has[: end + 1]), int(is_missing[: end + 1].sum())
            if is_missing[end] and missing >= self.least:
                measured, text = missing, f"no parameter has a gradient at {missing} of the last {end + 1} updates"
            elif row >= self.least and not learned[end]:
                measured, text = row, f"{self._zeros(evidence, at)} exactly 0 at {row} updates in a row"
            else:
                continue
            since = int(largest.steps[updates[end + 1 - row]])
            yield Symptom(
                "",
                tensor="",
                step=int(largest.steps[at]),
                measured=float(measured),
                threshold=float(self.least),
                text=text,
                since=since,
            )

    def _are_asked_for(self, evidence: Evidence) -> Mask:
        """At which steps of the window gradients were to be measured, or it is not known: updates may be watched more often."""
        is_known: Mask = np.any(evidence.are_due("update"), axis=1)
        is_due: Mask = np.any(evidence.are_due("grad"), axis=1)
        return is_due | ~is_known

    def _is_learned(self, evidence: Evidence) -> Mask:
        """At which steps of the window the loss is exactly 0 and has not been so from the start on."""
        loss, first = evidence.loss(), evidence.start("loss", "mean")
        if loss is None or first is None or first[0] == 0:
            return np.zeros(len(evidence.steps), dtype=np.bool_)
        is_learned: Mask = loss.values[:, 0] == 0
        return is_learned

    def _zeros(self, evidence: Evidence, at: int) -> str:
        loss = evidence.loss()
        return "the loss and all gradients are" if loss is not None and loss.values[at, 0] == 0 else "all gradients are"


@dataclass(frozen=True, kw_only=True)
class ZeroInput(HealthRule):
    """Every element that enters a layer with weights is 0, at each step from the first one on.

    Args:
        lasting: the number of steps for which it must be so. A step that changes no parameter does not count.
    """

    lasting: int = LASTING
    patience: int = 1
    every_n_steps: int = 5
    family: ClassVar[str] = "activations"
    obstacles: ClassVar[Obstacles] = (no_structure,)
    needs: ClassVar[Needs] = (("input", "zero_fraction"), ("update", "abs_max"))
    next_steps: ClassVar[tuple[str, ...]] = (
        "If the layer reads data, look at what the loader gives: a wrong key, a mask, a division of integers.",
        "If it reads another layer, look at the weights and biases there: something multiplies by 0.",
    )
    source: ClassVar[str] = "a definition; ten steps, because branches that start at zero leave that state within so many"

    def can_run(self, evidence: Evidence) -> str | None:
        reason = super().can_run(evidence)
        return None if reason == missing(evidence, "update", "abs_max") else reason

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        track, roles = evidence.track("input", "zero_fraction"), roles_of(evidence)
        first, early = evidence.start("input", "zero_fraction"), evidence.early("input", "zero_fraction")
        if track is None or first is None or early is None or roles is None or not (track.values[track.new] >= 1.0).any():
            return ()
        judged = np.array([roles.weight(name) is not None and not is_named_copy(name) for name in track.names], dtype=np.bool_)
        # In a long run the window begins late. The early level tells whether the input was another one in between.
        pattern = (track.values >= 1.0) & judged & (first >= 1.0) & ~(early < 1.0)
        begun = np.logical_and.accumulate(pattern | np.isnan(track.values), axis=0)
        text = f"every element of its input has been 0 since the first step{all_the_same(evidence)}"
        lasts = held_for_steps(track, begun & pattern, self.lasting, updates_before(evidence))
        return symptoms_where(track, lasts, 1.0, lambda _: text, pattern)


RULES: Final[tuple[HealthRule, ...]] = (ZeroGradients(), ZeroInput())
"""The rules on numbers that cannot be right, with their defaults."""
