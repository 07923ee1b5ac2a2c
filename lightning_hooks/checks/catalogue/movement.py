"""Checks on the step: it runs, gradients reach every trainable parameter, these move, and frozen ones stay."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from lightning_hooks.checks.check import Check
from lightning_hooks.checks.libraries import is_of_library, is_of_torch
from lightning_hooks.checks.result import CheckResult
from lightning_hooks.checks.trial import Trial
from lightning_hooks.errors import counted, listed
from lightning_hooks.health.accepting import is_accepted
from lightning_hooks.health.roles import EXPERT
from lightning_hooks.health.row_names import user_names
from lightning_hooks.health.rules import flow
from lightning_hooks.health.usage import is_named_copy


@dataclass(frozen=True, kw_only=True)
class StepRuns(Check):
    """A whole step runs: forward, loss, backward, and the steps of the optimizers.

    A step may make gradients without a backward of a tensor, or change parameters without gradients.
    """

    probes: ClassVar[tuple[str, ...]] = ("losses", "grads", "moved")
    next_steps: ClassVar[tuple[str, ...]] = ("Run the step by hand on this batch to see the traceback.",)
    source: ClassVar[str] = "a definition: no threshold"
    consequence: ClassVar[str] = (
        "A step that raises an error ends the training. Here it is found on the first batch instead of after the set-up of a "
        "long run."
    )
    false_alarm: ClassVar[str] = (
        "A step that needs state of the loop around it can fail alone. Give the check the function that your loop calls."
    )

    def run(self, trial: Trial) -> CheckResult:
        # The engine turns an error of the step into the result of this check.
        losses = trial.step.losses
        if not losses and trial.is_by_hand:
            return self.passed("a step runs, and makes gradients or moves without the backward of a loss")
        if not losses:
            return self.failed([""], "the step runs without a backward: no loss depends on a trainable parameter")
        return self.passed(f"a step runs, with a loss of {', '.join(f'{loss:.4g}' for loss in losses[:3])}", losses[0])


@dataclass(frozen=True, kw_only=True)
class NoGradient(Check):
    """Every trainable parameter gets a gradient that is not all zero, in some of seven steps.

    Members of a list of experts or layers of which others ran, and copies by their names that no optimizer holds, are left out.
    A parameter that the code of a library does not use for this task is a warning.
    """

    probes: ClassVar[tuple[str, ...]] = ("losses", "grads", "moved", "called", "traced")
    next_steps: ClassVar[tuple[str, ...]] = (
        "Look between the parameter and the loss for `detach()`, `.data`, `torch.no_grad()`, `argmax`, `.item()` or NumPy.",
        "Call the module in `forward`, or remove it; if it is to stay as it is, call `requires_grad_(False)` on it.",
    )
    source: ClassVar[str] = flow.NoGradient.source
    not_shown: ClassVar[str] = "a gradient that is lost only after the first seven steps"

    def run(self, trial: Trial) -> CheckResult:
        if not trial.trainable:
            return self.skipped("the model has no trainable parameter")
        grads = trial.grads
        called = set().union(*(record.called for record in trial.steps))
        without = [each.name for each in trial.trainable if each.name not in grads and not _is_shifted_bias(each.name, grads)]
        zero = [each.name for each in trial.trainable if grads.get(each.name) == 0 and not _is_shifted_bias(each.name, grads)]
        missing = [name for name in [*without, *zero] if not self._is_excused(trial, name, called)]
        forgotten = [name for name in missing if trial.optimizers and name not in trial.held]
        faulty = [name for name in missing if name not in forgotten]
        steps = f"{len(trial.steps)} steps" if len(trial.steps) > 1 else "the step"
        if missing and not grads and trial.is_by_hand:
            return self.skipped("the step moves parameters without gradients")
        if faulty and all(_is_unused_by_library(trial, name, grads) for name in faulty):
            text = f"no gradient comes in {steps}: the library's code does not use the parameter for this task"
            return self.warned(faulty, text, 0.0, 0.0)
        if faulty:
            return self.failed(faulty, _why(trial, faulty, called, grads, steps), 0.0, 0.0)
        if forgotten:
            return self.warned(forgotten, f"no gradient comes in {steps}, and no optimizer holds the parameter", 0.0, 0.0)
        excused = [name for name in [*without, *zero] if name not in missing]
        more = f"; left out as not used in this batch or as copies: {listed(user_names(excused), 3)}" if excused else ""
        return self.passed(f"a gradient reaches {len(trial.trainable) - len(excused)} trainable parameters{more}")

    def _is_excused(self, trial: Trial, name: str, called: set[str]) -> bool:
        if trial.optimizers and name not in trial.held and is_named_copy(name):
            return True
        owner = trial.names.owner_of[name]
        return owner not in called and _has_called_sibling(trial, owner, called)


def _is_unused_by_library(trial: Trial, name: str, grads: dict[str, float]) -> bool:
    """Whether the parameter belongs to code of a library of which other parameters have gradients, so that nothing is cut."""
    owner = trial.names.owner_of[name]
    if owner in trial.step.called and owner not in trial.step.traced:
        return False  # The module ran without a graph.
    within = trial.names.chain(owner)
    first = next((i for i, (_, module) in enumerate(within) if not is_of_torch(module)), len(within))
    outermost = None
    for path, module in within[first:]:
        if not is_of_library(module):
            break
        outermost = path
    if outermost is None:
        return False
    prefix = f"{outermost}." if outermost else ""
    return any(size > 0 for each, size in grads.items() if each.startswith(prefix))


def _is_shifted_bias(name: str, grads: dict[str, float]) -> bool:
    """Whether a bias has no gradient while its weight has one.

    A norm or a softmax takes the bias away, and so does a loss of derivatives, such as that of forces.
    """
    stem, _, leaf = name.rpartition(".")
    if "bias" not in leaf:
        return False
    weight = f"{stem}.{leaf.replace('bias', 'weight')}" if stem else leaf.replace("bias", "weight")
    return grads.get(weight, 0.0) > 0


def _has_called_sibling(trial: Trial, owner: str, called: set[str]) -> bool:
    """Whether the module belongs to a member of a list of which another member was called."""
    if EXPERT.match(owner):
        return True
    parts = owner.split(".")
    containers = {
        name: module for name, module in trial.model.named_modules() if isinstance(module, nn.ModuleList | nn.ModuleDict)
    }
    for i in range(len(parts) - 1, 0, -1):
        above = ".".join(parts[:i])
        if above in containers:
            ours = f"{above}.{parts[i]}"
            others = [
                name for name in called if name.startswith(f"{above}.") and not (name == ours or name.startswith(f"{ours}."))
            ]
            if others:
                return True
    return False


def _why(trial: Trial, names: Sequence[str], called: set[str], grads: dict[str, float], steps: str) -> str:
    if names[0] in grads:
        return f"the gradient is exactly 0 in {steps}"
    owner = trial.names.owner_of[names[0]]
    if owner and owner not in called:
        return f"no gradient comes in {steps}, because nothing calls the module"
    return f"no gradient comes in {steps}, although the module runs"


@dataclass(frozen=True, kw_only=True)
class UnchangedParameter(Check):
    """The optimizers move every trainable parameter that they hold and that has a gradient."""

    probes: ClassVar[tuple[str, ...]] = ("stepped", "grads", "moved")
    needs: ClassVar[tuple[str, ...]] = ("optimizer",)
    next_steps: ClassVar[tuple[str, ...]] = (
        "Look at the learning rate of the parameter's group, and whether the optimizer's `step` is called.",
        "If the parameter is in half precision, the update may be lost in rounding: keep it in float32.",
    )
    source: ClassVar[str] = "a definition: the same bit for bit in all of seven steps"
    not_shown: ClassVar[str] = "a parameter that stops moving only after the first seven steps"

    def run(self, trial: Trial) -> CheckResult:
        stepped = set().union(*(record.stepped for record in trial.steps))
        if not stepped:
            why = "the loss scaler skipped them" if trial.training.scales_loss else "they may accumulate gradients for longer"
            return self.skipped(f"no optimizer took a step in {len(trial.steps)} batches; {why}")
        grads, moved = trial.grads, trial.moved
        still = [each.name for each in trial.trainable if each.name in trial.held and each.name not in moved]
        faulty = [name for name in still if grads.get(name, 0.0) > 0]
        rates = _rates(trial)
        zero = [name for name in still if rates.get(name) == 0]
        if zero:
            return self.failed(zero, "the learning rate is 0, and no scheduler is to raise it", 0.0, 0.0)
        if faulty:
            rate = rates.get(faulty[0])
            text = "the parameter has a gradient and an optimizer, and stays bit for bit the same"
            return self.failed(faulty, f"{text}{'' if rate is None else f' (learning rate {rate:.3g})'}", 0.0, 0.0)
        if not moved:
            return self.skipped("no parameter has a gradient; see NoGradient")
        largest = max(moved.values())
        return self.passed(f"{counted(len(trial.held & moved.keys()), 'parameter')} moved, by {largest:.3g} at most", largest)


def _rates(trial: Trial) -> dict[str, float]:
    names = {id(each.value): each.name for each in trial.names.parameters}
    rates: dict[str, float] = {}
    for optimizer in trial.optimizers:
        for group in optimizer.param_groups:
            rate = group.get("lr")
            if rate is None:
                continue
            later = group.get("initial_lr")
            usual = float(rate) if float(rate) else float(later or 0.0)
            rates.update({names[id(each)]: usual for each in group["params"] if id(each) in names})
    return rates


@dataclass(frozen=True, kw_only=True)
class FrozenMoves(Check):
    """A step does not change parameters without `requires_grad`, nor the statistics of batch norms whose parameters are frozen.

    A copy that the step averages, such as a teacher, is left out.

    Args:
        params: patterns of the parameters that are meant to be frozen, `backbone.*`. One that is trainable fails.
    """

    params: tuple[str, ...] = ()

    probes: ClassVar[tuple[str, ...]] = ("moved", "optimizer_moved", "called")
    next_steps: ClassVar[tuple[str, ...]] = (
        "Give the optimizer only parameters with `requires_grad=True`, and search for code that writes to the weight.",
        "Call `eval()` on frozen batch norms, also after `train()`, so that they keep their statistics.",
    )
    source: ClassVar[str] = "a definition: the same bit for bit after one step"
    not_shown: ClassVar[str] = "code that writes to the parameter at some later step, or between two batches"

    def run(self, trial: Trial) -> CheckResult:
        meant = [each.name for each in trial.trainable if any(is_accepted([pattern], each.name, "") for pattern in self.params)]
        if meant:
            return self.failed(meant, "this parameter is meant to be frozen, and is trainable")
        frozen = [each.name for each in trial.names.parameters if not each.value.requires_grad]
        if not frozen:
            return self.passed("no parameter is frozen")
        moved = trial.step.moved
        by_optimizer = [name for name in frozen if name in trial.step.optimizer_moved]
        if by_optimizer:
            return self.failed(by_optimizer, "an optimizer moves this frozen parameter", moved.get(by_optimizer[0]), 0.0)
        by_code = [name for name in frozen if name in moved]
        averaged = [name for name in by_code if is_named_copy(name) or _is_frozen_as_a_whole(trial, name)]
        written = [name for name in by_code if name not in averaged]
        if written:
            return self.warned(written, "code in the step writes to this frozen parameter", moved[written[0]], 0.0)
        norms = list(_updating(trial, set(frozen)))
        if norms:
            text = "the parameters of this norm are frozen, and its running statistics change in training"
            return self.warned(norms, text)
        more = f"; {listed(user_names(averaged), 3)}: averaged by the step" if averaged else ""
        return self.passed(f"{counted(len(frozen) - len(averaged), 'frozen parameter')} stayed the same{more}")


def _is_frozen_as_a_whole(trial: Trial, name: str) -> bool:
    top = name.partition(".")[0]
    return not any(each.name.partition(".")[0] == top for each in trial.trainable)


def _updating(trial: Trial, frozen: set[str]) -> Iterable[str]:
    for target in trial.names.modules:
        module = target.value
        if not isinstance(module, _NormBase) or not module.track_running_stats or not module.training or not module.affine:
            continue
        own = [each for each, owner in trial.names.owner_of.items() if owner == target.name]
        is_called = target.name in trial.step.called
        if own and frozen.issuperset(own) and is_called and not is_named_copy(target.name):
            yield target.name


CHECKS: Final[tuple[Check, ...]] = (StepRuns(), NoGradient(), UnchangedParameter(), FrozenMoves())
"""The checks on the step, with their defaults."""
