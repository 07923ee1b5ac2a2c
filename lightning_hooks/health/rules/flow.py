"""Rules on what reaches a parameter: no gradient, or no change although there is a gradient."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.comparing.exact import columns_of
from lightning_hooks.health.evidence import Evidence
from lightning_hooks.health.reach import multiplies_zeros, unused_parameters
from lightning_hooks.health.roles import Mask, aligned, roles_of
from lightning_hooks.health.rule import HealthRule, Severity, Symptom, missing
from lightning_hooks.health.rules.base import (
    LASTING,
    Needs,
    Obstacles,
    all_the_same,
    no_optimizer,
    no_structure,
    updates_before,
)
from lightning_hooks.health.track import Track
from lightning_hooks.health.usage import columns_for, gap_at_end, has_any, is_named_copy, membership_of

_EPS: Final = {"float64": 2.3e-16, "float32": 1.2e-7, "float16": 9.8e-4, "bfloat16": 7.9e-3}
"""The relative distance of neighbouring numbers of a dtype."""
_COUPLED: Final = ("LBFGS",)
"""Optimizers that may leave a parameter as it is although it has a gradient."""


@dataclass(frozen=True, kw_only=True)
class NoGradient(HealthRule):
    """No gradient reaches a parameter that an optimizer holds and whose module runs, while others get one.

    The gradient is missing, or that of a weight is exactly 0 while other parameters of the same optimizer have one. It must
    have been missing from the start on, or have been there at every step before. If the gradient of the module's output is
    exactly 0 too, the path from there to the loss is shut. `UnusedOutput` has the parameters of which the loss uses
    nothing, and `ZeroGradients` the steps at which no parameter has a gradient.

    Args:
        least: the number of steps without a gradient, for a parameter that had one.
        least_at_start: the number of steps without a gradient, for a parameter that never had one.
        history: the number of steps in a row at which a parameter had a gradient that it lost.
        lasting: the number of updates, after the first, for which a path must be shut. One that starts at zero opens sooner.
    """

    least: int = 2
    least_at_start: int = 5
    history: int = 20
    lasting: int = LASTING
    patience: int = 1
    family: ClassVar[str] = "facts"
    obstacles: ClassVar[Obstacles] = (no_optimizer, no_structure)
    needs: ClassVar[Needs] = (
        ("grad", "nonfinite"),
        ("grad", "abs_max"),
        ("update", "nonfinite"),
        ("update", "abs_max"),
        ("param", "norm"),
        ("output", "count"),
        ("output", "rms"),
        ("output", "zero_fraction"),
        ("input", "rms"),
        ("input", "zero_fraction"),
        ("output_grad", "abs_max"),
    )
    every_n_steps: int = 5
    next_steps: ClassVar[tuple[str, ...]] = (
        "Search between the module and the loss for `detach()`, `torch.no_grad()`, `.data`, `.item()` and argmax.",
        "If the gradient is exactly 0, search there for a gate, mask or scale of 0, and for an activation that gives only 0.",
        "If no gradient is to reach the parameter, call `requires_grad_(False)` on it.",
    )
    source: ClassVar[str] = "a definition; the optimizer must hold the parameter and its module must run"
    consequence: ClassVar[str] = (
        "The optimizer cannot train the parameter. It keeps its first values, and what it computes is noise for the layers "
        "after it."
    )
    false_alarm: ClassVar[str] = (
        "A path that a later stage opens, or a branch that is unused for some steps, can look cut. Freeze the parameter, or "
        "accept the finding."
    )

    def can_run(self, evidence: Evidence) -> str | None:
        reason = super().can_run(evidence)
        # The rule runs without rows of outputs and inputs, which a monitor of parameters alone does not have. They only add
        # whether a module ran, whether a gradient reaches its output, and what reads that.
        return None if reason is not None and ("`output" in reason or "`input`" in reason) else reason

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        symptoms = [*self.without_gradient(evidence)]
        unused = unused_parameters(evidence, [each.row for each in symptoms]) if symptoms else {}
        return (each for each in symptoms if each.row not in unused)

    def without_gradient(self, evidence: Evidence) -> Iterator[Symptom]:
        """The symptoms of all parameters without a gradient, whatever the reason is."""
        grad = evidence.track("grad", "abs_max")
        if grad is None or bool((evidence.new_values(grad) > 0).all()):
            return
        update, roles = evidence.track("update", "nonfinite"), roles_of(evidence)
        count = evidence.track("grad", "nonfinite")
        if count is None or update is None or roles is None or evidence.facts is None:
            return
        columns = roles.remember(
            "updates of gradients", (*update.names, "", *grad.names), lambda: columns_of(update.names, grad.names)
        )
        weights = roles.are_weights(grad.names) & ~roles.have_role(roles.owners(grad.names), ("embedding",))

        def read(part: slice) -> tuple[Mask, Mask]:
            """At which steps of a part of the window each parameter was updated, and had a gradient."""
            of_part = grad._replace(values=grad.values[part])
            are_zero = (of_part.values == 0) & weights
            if are_zero.any():
                are_zero &= self._others_have(evidence, of_part)
            with np.errstate(invalid="ignore"):
                some_have: Mask = np.any((of_part.values > 0) | (count.values[part] > 0), axis=1)
            updated = (columns >= 0) & ~np.isnan(update.values[part][:, columns])
            return updated & some_have[:, None], ~np.isnan(count.values[part]) & ~are_zero

        # With several optimizers, a step may update only some parameters.
        # Judge each parameter at the last step that updated it.
        stepped, has = read(grad.new)
        last = len(stepped) - 1 - stepped[::-1].argmax(axis=0)
        lacks = stepped.any(axis=0) & ~has[last, np.arange(len(last))]
        if not lacks.any():
            return
        stepped, has = read(slice(None))
        for column in np.flatnonzero(lacks).tolist():
            yield from self._symptoms(evidence, grad, column, stepped[:, column], has[:, column])

    def _others_have(self, evidence: Evidence, grad: Track) -> Mask:
        """At which steps another parameter of the same optimizer has a gradient other than 0, [steps, rows]."""
        facts = evidence.facts
        held = membership_of(facts).optimizer_of if facts is not None else {}
        numbers = np.array([held.get(name, -1) for name in grad.names])
        found = np.zeros(grad.values.shape, dtype=np.bool_)
        for number in np.unique(numbers[numbers >= 0]).tolist():
            of_optimizer = numbers == number
            with np.errstate(invalid="ignore"):
                some: Mask = np.any(grad.values[:, of_optimizer] > 0, axis=1)
            found[:, of_optimizer] = some[:, None]
        return found

    def _symptoms(self, evidence: Evidence, grad: Track, column: int, stepped: Mask, has: Mask) -> Iterator[Symptom]:
        name, facts, structure = grad.names[column], evidence.facts, evidence.structure
        if facts is None or structure is None or name in facts.frozen or name not in membership_of(facts).optimizer_of:
            return
        measured = np.flatnonzero(stepped)
        gap = gap_at_end(has[measured])
        before = len(measured) - gap
        # A gradient is lost only if every earlier step had one: a module that is used now and then has none at some steps.
        is_lost = before >= self.history and gap >= self.least and bool(has[measured[:before]].all())
        is_without = before == 0 and gap >= self.least_at_start
        if not (is_without or is_lost) or is_named_copy(name):
            return
        runs = has_any(evidence.track("output", "count"), _module_of(evidence, name))
        begin, value = int(grad.steps[measured[before]]), grad.values[measured[-1], column]
        if (runs is not None and not runs[measured[before:]].all()) or (not value == 0 and self._moves(evidence, name, begin)):
            return
        tensor, text, end = "update", "the optimizer holds it and gets no gradient", ""
        if value == 0:
            largest = self._reaching_output(evidence, name, measured[before:])
            if not largest > 0:
                updates = updates_before(evidence)[measured[before:]]
                if updates[-1] - updates[0] <= self.lasting:
                    return
                end = all_the_same(evidence)
            tensor, text = "grad", "its gradient is exactly 0, while others are not"
            if multiplies_zeros(evidence, name):
                tensor, text = "input", "its gradient is exactly 0, because it multiplies nothing but zeros"
            elif largest == 0:
                tensor, text = "output_grad", "its gradient is exactly 0, because so is that of its module's output"
        for step in grad.steps[measured[before:]].tolist():
            if step >= int(grad.steps[grad.new.start]):
                yield Symptom(
                    name,
                    tensor=tensor,
                    step=step,
                    measured=0.0,
                    threshold=1.0,
                    text=f"{text} ({'since the start' if before == 0 else 'lost'}){end}",
                    since=begin,
                )

    def _reaching_output(self, evidence: Evidence, name: str, steps: NDArray[np.intp]) -> float:
        """The largest gradient of the output of a parameter's module at these steps of the window; NaN if it is not known."""
        track = evidence.track("output_grad", "abs_max")
        if track is None:
            return float("nan")
        values = track.values[np.ix_(steps, columns_for(_module_of(evidence, name), track.names))]
        known = values[~np.isnan(values)]
        return float(known.max()) if len(known) else float("nan")

    def _moves(self, evidence: Evidence, name: str, begin: int) -> bool:
        """Whether something else than the optimizer changes the parameter, as with a moving average."""
        param = evidence.track("param", "norm")
        if param is None or name not in param.names:
            return False
        since = param.steps >= begin
        norms = param.values[since, param.names.index(name)]
        norms = norms[np.isfinite(norms)]
        return len(norms) > 1 and bool(np.ptp(norms) > 1e-6 * abs(norms[0]))


_NO_GRADIENT: Final = NoGradient()


@dataclass(frozen=True, kw_only=True)
class UnusedOutput(HealthRule):
    """No gradient reaches a parameter whose output no loss seems to use. That may be meant, so this is information.

    Modules with a gradient run before its module, and no later one reads its output. Or it is the recurrent weight of one of
    the directions of which only the first element is read.
    """

    severity: Severity = Severity.INFO
    patience: int = 1
    every_n_steps: int = 5
    family: ClassVar[str] = "facts"
    obstacles: ClassVar[Obstacles] = (no_optimizer, no_structure)
    needs: ClassVar[Needs] = NoGradient.needs
    next_steps: ClassVar[tuple[str, ...]] = (
        "If the loss should use the output, look at what becomes of it: it is dropped, detached, or rounded to an index.",
        "If the loss should not, call `requires_grad_(False)` on the parameter.",
    )
    source: ClassVar[str] = "a definition: no threshold"
    consequence: ClassVar[str] = (
        "The parameters cost memory and time and learn nothing. With DDP they can stop the training with an error."
    )
    false_alarm: ClassVar[str] = (
        "A head that this loss does not need is common in libraries, so that the finding is information. Freeze the parameter "
        "if it is meant."
    )

    def can_run(self, evidence: Evidence) -> str | None:
        reason = super().can_run(evidence)
        return None if reason == missing(evidence, "output_grad", "abs_max") else reason

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        symptoms = [*_NO_GRADIENT.without_gradient(evidence)]
        unused = unused_parameters(evidence, [each.row for each in symptoms]) if symptoms else {}
        return (replace(each, text=unused[each.row]) for each in symptoms if unused.get(each.row))


@dataclass(frozen=True, kw_only=True)
class UnchangedParameter(HealthRule):
    """A parameter with a gradient does not change, while others of the same optimizer do.

    Only where the expected change is above what its number format resolves: the learning rate times the largest element of the
    gradient, or times 1 if that is less.
    """

    patience: int = 3
    every_n_steps: int = 5
    family: ClassVar[str] = "facts"
    obstacles: ClassVar[Obstacles] = (no_optimizer, no_structure)
    needs: ClassVar[Needs] = (("update", "abs_max"), ("grad", "abs_max"), ("param", "abs_max"))
    next_steps: ClassVar[tuple[str, ...]] = (
        "Search for code that restores the weight after the step, or that sets its gradient to 0 before it.",
        "Look whether the forward pass uses another tensor than the parameter that the optimizer holds.",
    )
    source: ClassVar[str] = "3 steps, as UnchangedTensor of smdebug; a change below the last digit of a weight is not expected"
    consequence: ClassVar[str] = "The parameter has a gradient and yet never moves, so that the model trains without this part."
    false_alarm: ClassVar[str] = (
        "Code that puts a weight back after each step, such as a projection to fixed values, is told too. Accept the finding "
        "if that is meant."
    )

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        update, structure = evidence.track("update", "abs_max"), evidence.structure
        if update is None or structure is None or not (update.values[update.new] == 0).any():
            return
        grad, param = evidence.track("grad", "abs_max"), evidence.track("param", "abs_max")
        if grad is None or param is None:
            return
        eps = {each.name: _EPS.get(each.dtype, 1.0) for each in structure.parameters}
        steps = update.steps.tolist()
        for i in range(update.new.start, update.new.stop):
            still = np.flatnonzero(update.values[i] == 0).tolist()
            facts = evidence.facts_at(steps[i]) if still else None
            if facts is None:
                continue
            members = membership_of(facts)
            moving = {members.optimizer_of.get(update.names[c]) for c in np.flatnonzero(update.values[i] > 0).tolist()}
            names = [update.names[column] for column in still]
            slopes, sizes = aligned(grad.values[i], grad.names, names), aligned(param.values[i], param.names, names)
            for name, slope, size in zip(names, slopes.tolist(), sizes.tolist(), strict=True):
                number, rate = members.optimizer_of.get(name), members.lr_of.get(name)
                if number is None or number not in moving or rate is None or not np.isfinite(slope):
                    continue
                expected, visible = rate * min(slope, 1.0), eps.get(name, 1.0) * size
                if facts.optimizers[number].type not in _COUPLED and expected > 4 * visible:
                    text = f"the step changes nothing of it, although its gradient reaches {slope:.2g}"
                    yield Symptom(name, tensor="update", step=steps[i], measured=0.0, threshold=visible, text=text)


def _module_of(evidence: Evidence, parameter: str) -> str:
    roles = roles_of(evidence)
    return roles.owners((parameter,))[0] if roles else parameter.rpartition(".")[0]


RULES: Final[tuple[HealthRule, ...]] = (NoGradient(), UnusedOutput(), UnchangedParameter())
"""The rules on what reaches a parameter, with their defaults."""
