"""The check that the optimizers hold what the model trains, and no more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from lightning_hooks.checks.check import Check
from lightning_hooks.checks.result import CheckResult
from lightning_hooks.checks.trial import Trial
from lightning_hooks.health.usage import is_named_copy


@dataclass(frozen=True, kw_only=True)
class OptimizerCoversParameters(Check):
    """Optimizers hold every trainable parameter of the model, and no parameter that the model does not have.

    A parameter that neither an optimizer holds nor a gradient reaches is a matter of `GradientsReachParameters`. An optimizer
    that holds nothing of the model may train something else, such as the temperature of SAC.
    """

    needs: ClassVar[tuple[str, ...]] = ("optimizer",)
    next_steps: ClassVar[tuple[str, ...]] = (
        "Create the optimizer from the parameters of the whole model, after the last change of the model.",
        "If a parameter is to stay as it is, call `requires_grad_(False)` on it.",
        "Keep modules in `nn.ModuleList` or `nn.ModuleDict`.",
    )
    source: ClassVar[str] = "a definition: no threshold"

    def run(self, trial: Trial) -> CheckResult:
        """See `Check`."""
        grads = trial.grads
        left = [each.name for each in trial.trainable if each.name not in trial.held and not is_named_copy(each.name)]
        reached = [name for name in left if name in grads]
        strangers = self._strangers(trial)
        hidden = [name for name in trial.step.hidden if not self._holds(trial, name)]
        if hidden:
            return self.failed(
                hidden, "a plain list holds this module, so its parameters are not those of the model", len(hidden), 0
            )
        if reached:
            more = f"; {strangers[0]} holds {strangers[1]} parameters that the model does not have" if strangers[1] else ""
            return self.failed(reached, f"no optimizer holds this parameter, which gets a gradient{more}", len(reached), 0)
        if strangers[1] and left:
            text = f"{strangers[0]} holds {strangers[1]} parameters that the model does not have, while none holds this one"
            return self.failed(left, text, strangers[1], 0)
        if strangers[2]:
            text = (
                f"{strangers[0]} holds {strangers[2]} parameters that the model does not have, beside parameters of the model"
            )
            return self.warned([""], text, strangers[2], 0)
        count = sum(each.name in trial.held for each in trial.trainable)
        return self.passed(f"{count} of {len(trial.trainable)} trainable parameters are in an optimizer", count)

    def _holds(self, trial: Trial, hidden: str) -> bool:
        """Whether an optimizer holds a parameter of a module in a plain list."""
        held = {id(each) for optimizer in trial.optimizers for group in optimizer.param_groups for each in group["params"]}
        module = dict(trial.names.hidden())[hidden]
        return any(id(each) in held for each in module.parameters())

    def _strangers(self, trial: Trial) -> tuple[str, int, int]:
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


CHECKS: Final[tuple[Check, ...]] = (OptimizerCoversParameters(),)
"""The checks on membership, with their defaults."""
