"""The check that the training can learn one batch by heart. It takes many steps, so it runs only if it is asked for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from torch import nn

from lightning_hooks.checks.check import Check
from lightning_hooks.checks.result import CheckResult
from lightning_hooks.checks.trial import Trial
from lightning_hooks.engine.participants.facts import role_of


@dataclass(frozen=True, kw_only=True)
class OverfitsBatch(Check):
    """The loss of one batch falls when it is trained again and again, without dropout.

    Args:
        steps: how many.
        most: the share of the first loss that the last ones may have; above it the check warns.
        no_progress: the share above which it fails.
    """

    enabled: bool = False
    steps: int = 50
    most: float = 0.5
    no_progress: float = 0.99
    needs: ClassVar[tuple[str, ...]] = ("optimizer",)
    minima: ClassVar[Mapping[str, int]] = {"steps": 1}
    next_steps: ClassVar[tuple[str, ...]] = (
        "Try learning rates ten times as large and ten times as small on this batch.",
        "Compare inputs and labels of some samples by eye: labels that do not belong to their inputs cannot be learnt.",
    )
    source: ClassVar[str] = "ours: a healthy training halves the loss of a batch of 32 within 50 steps"
    consequence: ClassVar[str] = (
        "A model that cannot learn 32 samples by heart will not learn the data set: the model, the loss or the rate is at "
        "fault."
    )
    false_alarm: ClassVar[str] = (
        "Strong regularisation, labels that are noise by design, or a small learning rate can keep the loss of one batch up."
    )

    def run(self, trial: Trial) -> CheckResult:
        losses: list[float] = []
        for index in range(self.steps):
            record = trial.run(probes=("losses", "grads"), before=_without_dropout, index=index, from_start=index == 0)
            if len(record.losses) != 1:
                return self.skipped(f"a step has {len(record.losses)} losses, of which one may rise while another falls")
            losses += record.losses
            broken = [name for name, size in record.grads.items() if not math.isfinite(size)]
            if broken and not trial.training.scales_loss:
                return self.failed(broken, f"the gradient holds NaN or infinity after {index} steps on the batch", math.nan)
            if not math.isfinite(losses[-1]):
                return self.failed([""], f"the loss of one batch is not finite after {index} steps", losses[-1])
        first, last = losses[0], min(losses[-5:])
        if first <= 0:
            return self.skipped(f"the first loss is {first:.3g}, and what is little of it is not known")
        text = f"the loss of one batch goes from {first:.3g} to {last:.3g} in {self.steps} steps"
        share = last / first
        if share > self.no_progress:
            return self.failed([""], text, share, self.no_progress)
        return self.warned([""], text, share, self.most) if share > self.most else self.passed(text, share, self.most)


def _without_dropout(model: nn.Module) -> None:
    for module in model.modules():
        if role_of(module) == "dropout":
            module.eval()


CHECKS: Final[tuple[Check, ...]] = (OverfitsBatch(),)
"""The check, with its defaults."""
