"""The checks that the optimizers hold what the model trains, and no more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from lightning_hooks.checks.check import Check
from lightning_hooks.checks.result import CheckResult
from lightning_hooks.checks.trial import Trial
from lightning_hooks.errors import counted
from lightning_hooks.health.rules import membership as rules
from lightning_hooks.health.usage import is_named_copy

_NEXT_STEPS: Final = (
    "Create the optimizer from the parameters of the whole model, after the last change of the model.",
    "If a parameter is to stay as it is, call `requires_grad_(False)` on it.",
    "Keep modules in `nn.ModuleList` or `nn.ModuleDict`.",
)


@dataclass(frozen=True, kw_only=True)
class NotInOptimizer(Check):
    """Optimizers hold every trainable parameter that gets a gradient.

    A parameter that neither an optimizer holds nor a gradient reaches is a matter of `NoGradient`.
    """

    probes: ClassVar[tuple[str, ...]] = ("grads", "moved", "hidden")
    needs: ClassVar[tuple[str, ...]] = ("optimizer",)
    next_steps: ClassVar[tuple[str, ...]] = _NEXT_STEPS
    source: ClassVar[str] = rules.NotInOptimizer.source
    not_shown: ClassVar[str] = "a parameter that is trainable, or leaves its optimizer, only after the first steps"

    def run(self, trial: Trial) -> CheckResult:
        hidden = [name for name in trial.step.hidden if not self._holds(trial, name)]
        if hidden:
            return self.failed(
                hidden, "a plain list holds this module, so its parameters are not those of the model", len(hidden), 0
            )
        grads = trial.grads
        reached = [name for name in _left(trial) if name in grads]
        if reached:
            return self.failed(reached, "no optimizer holds this parameter, which gets a gradient", len(reached), 0)
        count = sum(each.name in trial.held for each in trial.trainable)
        return self.passed(f"{count} of {len(trial.trainable)} trainable parameters are in an optimizer", count)

    def _holds(self, trial: Trial, hidden: str) -> bool:
        """Whether an optimizer holds a parameter of a module in a plain list."""
        held = {id(each) for optimizer in trial.optimizers for group in optimizer.param_groups for each in group["params"]}
        module = dict(trial.names.hidden())[hidden]
        return any(id(each) in held for each in module.parameters())


@dataclass(frozen=True, kw_only=True)
class StrangerInOptimizer(Check):
    """Optimizers hold no parameter that the model does not have.

    An optimizer that holds nothing of the model may train something else, such as the temperature of SAC. It is a fault if at
    the same time no optimizer holds some trainable parameters of the model.
    """

    needs: ClassVar[tuple[str, ...]] = ("optimizer",)
    next_steps: ClassVar[tuple[str, ...]] = _NEXT_STEPS
    source: ClassVar[str] = rules.StrangerInOptimizer.source
    not_shown: ClassVar[str] = "a layer that is replaced only after the first steps"

    def run(self, trial: Trial) -> CheckResult:
        names, count, beside = _strangers(trial)
        left = _left(trial)
        if count and left:
            text = f"{names} holds {counted(count, 'parameter')} that the model does not have, while none holds this one"
            return self.failed(left, text, count, 0)
        if beside:
            text = f"{names} holds {counted(beside, 'parameter')} that the model does not have, beside parameters of the model"
            return self.warned([""], text, beside, 0)
        if count:
            return self.passed(f"{names} holds nothing of the model, and the other optimizers hold all of it")
        return self.passed("optimizers hold parameters of the model only")


def _left(trial: Trial) -> list[str]:
    """The trainable parameters that no optimizer holds, except those that their names call copies."""
    return [each.name for each in trial.trainable if each.name not in trial.held and not is_named_copy(each.name)]


def _strangers(trial: Trial) -> tuple[str, int, int]:
    """The name of the optimizers with strangers, how many these are, and how many of them are beside the model's."""
    known = {id(each.value) for each in trial.names.parameters}
    others = {id(each) for each in trial.training.other_parameters}
    names, count, beside = [], 0, 0
    for i, optimizer in enumerate(trial.optimizers):
        ids = [id(each) for group in optimizer.param_groups for each in group["params"]]
        strange = sum(each not in known and each not in others for each in ids)
        count += strange
        beside += strange if any(each in known for each in ids) else 0
        if strange:
            names.append(f"optimizer {i} ({type(optimizer).__name__})")
    return " and ".join(names), count, beside


CHECKS: Final[tuple[Check, ...]] = (NotInOptimizer(), StrangerInOptimizer())
"""The checks on membership, with their defaults."""
