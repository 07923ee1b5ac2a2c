"""Rules on numbers that cannot be right whatever the loss does: no gradient at all, an input of zeros.

A gradient that is consumed within the backward pass is no fault, and has a rule that says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from lightning_hooks.comparing.exact import columns_of
from lightning_hooks.health.evidence import Evidence
from lightning_hooks.health.roles import WEIGHTED, Mask, roles_of
from lightning_hooks.health.rule import HealthRule, Severity, Symptom, missing, symptoms_where
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
from lightning_hooks.health.usage import gap_at_end, has_any, is_named_copy, rates_of
from lightning_hooks.health.zero_losses import zeros_between

_ARRIVED: Final = ("grad", "abs_max")
_CHANGE: Final = ("update", "abs_max")
_FINAL: Final = ("final_grad", "norm")
_WITNESSES: Final = ("param", "output_grad", "final_grad")
"""The tensors that tell why a gradient is missing."""
_MOVES: Final = 1e-6
"""The relative change of a norm that is no rounding."""


@dataclass(frozen=True, kw_only=True)
class ZeroGradients(HealthRule):
    """The optimizer steps, and no parameter has a gradient other than 0.

    All gradients are exactly 0 at ten updates in a row; or no parameter has one at all, at ten updates. Gradients that had
    arrived may be gone when they are read last before the step: such an update counts if it changes nothing. It is no fault
    if the loss has fallen to exactly 0, since all is learned then, nor if parameters without a gradient change all the same;
    see `GradientsConsumed`. Single updates count where the loss is 0 although those around it are as large as at first.

    Args:
        least: the number of updates.
    """

    least: int = LASTING
    patience: int = 1
    every_n_steps: int = 5
    family: ClassVar[str] = "gradients"
    obstacles: ClassVar[Obstacles] = (no_optimizer,)
    needs: ClassVar[Needs] = (
        ("grad", "nonfinite"),
        ("grad", "abs_max"),
        ("update", "nonfinite"),
        ("update", "abs_max"),
        ("param", "norm"),
        ("output_grad", "abs_max"),
        ("final_grad", "norm"),
    )
    next_steps: ClassVar[tuple[str, ...]] = (
        "If no parameter has a gradient, search for `zero_grad()` between `backward()` and `step()`.",
        "If gradients are 0, look at what stands before the loss: a ReLU at the output, a limit that every output exceeds, "
        "targets that are all ignored, `zero_infinity`.",
        "If the loss is 0 too, print the prediction, the target and the mask of one batch: a factor or a mask of 0, or a "
        "prediction that is compared with itself.",
    )
    source: ClassVar[str] = "a definition; at ten updates, because branches that start at zero and single batches may have none"
    consequence: ClassVar[str] = "No update changes the model, so that the rest of the training is lost time."
    false_alarm: ClassVar[str] = (
        "A loss that is exactly 0 for ten steps because all samples are within a margin is told too, if it was so from the "
        "first step on."
    )

    def can_run(self, evidence: Evidence) -> str | None:
        reason = super().can_run(evidence)
        # These rows only show where gradients are consumed, or are gone before the step. A monitor of gradients has none.
        return None if reason is not None and any(f"`{each}`" in reason for each in _WITNESSES) else reason

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        yield from self._without_gradient(evidence)
        yield from self._cleared(evidence)
        yield from self._in_between(evidence)

    def _in_between(self, evidence: Evidence) -> Iterator[Symptom]:
        """The updates at which nothing contributes to the loss, although all is not learned."""
        loss, largest = evidence.loss(), evidence.track("grad", "abs_max")
        if loss is None or largest is None or not (loss.values[loss.new] == 0).any() or loss.values[-1, 0] == 0:
            return
        found = zeros_between(evidence)
        with np.errstate(invalid="ignore"):
            if found is None or found[0] < self.least or (largest.values[loss.values[:, 0] == 0] > 0).any():
                return
        count, first = found
        text = f"the loss and all gradients are exactly 0 at {count} updates, between losses of about {first:.3g}"
        yield Symptom("", tensor="loss", step=evidence.step, measured=count, threshold=self.least, text=text)

    def _without_gradient(self, evidence: Evidence) -> Iterator[Symptom]:
        """The updates that find no gradient, or only zeros, before any code between backward and step has run."""
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
            if is_missing[end] and _consumed(evidence, self.least):
                continue
            tensor = ""
            if is_missing[end] and missing >= self.least:
                measured, text = missing, f"no parameter has a gradient at {missing} of the last {end + 1} updates"
            elif row >= self.least and not learned[end]:
                tensor = "loss" if _is_zero(evidence, at) else ""
                what = "the loss and all gradients are" if tensor else "all gradients are"
                measured, text = row, f"{what} exactly 0 at {row} updates in a row"
            else:
                continue
            since = int(largest.steps[updates[end + 1 - row]])
            yield Symptom(
                "",
                tensor=tensor,
                step=int(largest.steps[at]),
                measured=float(measured),
                threshold=float(self.least),
                text=text,
                since=since,
            )

    def _cleared(self, evidence: Evidence) -> Iterator[Symptom]:
        """The updates that change nothing, since gradients that were there are gone when they are read last before the step."""
        largest, update, final = (evidence.track(*need) for need in (_ARRIVED, _CHANGE, _FINAL))
        if largest is None or update is None or final is None or not (update.values[update.new] == 0).any():
            return
        with np.errstate(invalid="ignore"):
            has_arrived, changes = np.any(largest.values > 0, axis=1), np.any(update.values > 0, axis=1)
        updates = np.flatnonzero(~np.isnan(update.values).all(axis=1) & ~np.isnan(largest.values).all(axis=1))
        is_due, is_there = np.any(evidence.are_due("final_grad"), axis=1), ~np.isnan(final.values).all(axis=1)
        is_cleared = has_arrived & ~changes & ~is_there
        for end, at in enumerate(updates.tolist()):
            if at < update.new.start or not is_cleared[at]:
                continue
            before = updates[: end + 1][is_cleared[updates[: end + 1]]]
            if len(before) < self.least or not is_due[before].any():
                continue
            if max(rates_of(evidence.facts_at(int(update.steps[at]))), default=0.0) > 0:
                text = (
                    f"gradients are gone when the optimizer steps, and nothing changes, at {len(before)} of {end + 1} updates"
                )
                yield Symptom(
                    "",
                    tensor="",
                    step=int(update.steps[at]),
                    measured=float(len(before)),
                    threshold=float(self.least),
                    text=text,
                    since=int(update.steps[before[0]]),
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


def _is_zero(evidence: Evidence, at: int) -> bool:
    """Whether the loss is exactly 0 at a step of the window."""
    loss = evidence.loss()
    return loss is not None and bool(loss.values[at, 0] == 0)


@dataclass(frozen=True, kw_only=True)
class GradientsConsumed(HealthRule):
    """Parameters have no gradient when the optimizer steps, and change all the same. Each gradient is consumed within backward.

    A hook steps as soon as a gradient is there, as `_apply_optimizer_in_backward` of torch does, or takes the gradient into
    memory of its own. That is meant, so this is information: rules on gradients cannot judge these parameters. The gradient
    of the module's output is the witness: no gradient reaches a moving average of another module, which also changes.

    Args:
        least: the number of updates.
    """

    least: int = LASTING
    severity: Severity = Severity.INFO
    patience: int = 1
    every_n_steps: int = 5
    family: ClassVar[str] = "facts"
    obstacles: ClassVar[Obstacles] = (no_optimizer, no_structure)
    needs: ClassVar[Needs] = (("grad", "nonfinite"), ("update", "abs_max"), ("param", "norm"), ("output_grad", "abs_max"))
    next_steps: ClassVar[tuple[str, ...]] = (
        "In a plain loop, give `instrument` the optimizers that step within backward: then their gradients are measured.",
    )
    source: ClassVar[str] = "a definition; at ten updates, all that were watched, because code may set weights at single steps"
    consequence: ClassVar[str] = (
        "Nothing is wrong with the training. Rules on gradients cannot judge parameters whose gradients are gone before the "
        "step."
    )
    false_alarm: ClassVar[str] = (
        "The finding is information about what cannot be measured. In a plain loop it ends when `instrument` is given these "
        "optimizers."
    )

    def can_run(self, evidence: Evidence) -> str | None:
        reason = super().can_run(evidence)
        return None if reason is not None and "`output_grad`" in reason else reason

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        count = evidence.track("grad", "nonfinite")
        if count is None or not np.isnan(evidence.new_values(count)).any():
            return
        text = "it has no gradient when the optimizer steps, and changes all the same: its gradient is consumed within backward"
        for name, begin in _consumed(evidence, self.least).items():
            yield Symptom(name, tensor="", step=evidence.step, measured=1.0, threshold=0.0, text=text, since=begin)


def _consumed(evidence: Evidence, least: int) -> dict[str, int]:
    """The first update of each parameter that had a gradient at none of at least so many updates, and yet changes."""
    count, update, param, reached = (evidence.track(*need) for need in GradientsConsumed.needs)
    roles = roles_of(evidence)
    if count is None or update is None or param is None or roles is None:
        return {}
    of_updates, of_params = columns_of(update.names, count.names), columns_of(param.names, count.names)
    found: dict[str, int] = {}
    is_known = (of_updates >= 0) & (of_params >= 0)
    for column in np.flatnonzero(np.isnan(count.values).all(axis=0) & is_known).tolist():
        name, changes = count.names[column], update.values[:, of_updates[column]]
        updates = np.flatnonzero(~np.isnan(changes))
        above = has_any(reached, roles.owners((name,))[0])
        if len(updates) < least or (above is not None and not above.any()):
            continue
        norms = param.values[updates, of_params[column]]
        norms = norms[np.isfinite(norms)]
        if (changes[updates] > 0).all() or (len(norms) > 1 and np.ptp(norms) > _MOVES * abs(norms[0])):
            found[name] = int(count.steps[updates[0]])
    return found


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
    consequence: ClassVar[str] = (
        "A layer that only gets zeros gives its bias for every sample, and its weight gets no gradient."
    )
    false_alarm: ClassVar[str] = (
        "An input that is zero on purpose, such as the first state of a recurrent network, is told too. Accept the finding for "
        "that layer."
    )

    def can_run(self, evidence: Evidence) -> str | None:
        reason = super().can_run(evidence)
        return None if reason == missing(evidence, "update", "abs_max") else reason

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        track, roles = evidence.track("input", "zero_fraction"), roles_of(evidence)
        first, early = evidence.start("input", "zero_fraction"), evidence.early("input", "zero_fraction")
        if track is None or first is None or early is None or roles is None or not (track.values[track.new] >= 1.0).any():
            return ()
        judged = roles.have_role(track.names, WEIGHTED) | np.array([roles.weight(name) is not None for name in track.names])
        judged = judged & np.array([not is_named_copy(name) for name in track.names], dtype=np.bool_)
        # In a long run the window begins late. The early level tells whether the input was another one in between.
        pattern = (track.values >= 1.0) & judged & (first >= 1.0) & ~(early < 1.0)
        begun = np.logical_and.accumulate(pattern | np.isnan(track.values), axis=0)
        text = f"every element of its input has been 0 since the first step{all_the_same(evidence)}"
        lasts = held_for_steps(track, begun & pattern, self.lasting, updates_before(evidence))
        return symptoms_where(track, lasts, 1.0, lambda _: text, pattern)


RULES: Final[tuple[HealthRule, ...]] = (ZeroGradients(), GradientsConsumed(), ZeroInput())
"""The rules on numbers that cannot be right, with their defaults."""
