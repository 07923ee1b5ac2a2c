"""Checks on numbers that a training is given: the betas of an optimizer, and the rates of dropouts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final

from lightning_hooks.checks.check import Check
from lightning_hooks.checks.result import CheckResult
from lightning_hooks.checks.trial import Trial
from lightning_hooks.errors import counted
from lightning_hooks.health.rules import modes as rules


@dataclass(frozen=True, kw_only=True)
class SwappedBetas(Check):
    """The first beta of an optimizer, of the gradient, is not above the second one, of its square.

    Optimizers with three betas are not judged: the second beta of Adan belongs to differences of gradients, and is usually
    below the first one.
    """

    needs: ClassVar[tuple[str, ...]] = ("optimizer",)
    next_steps: ClassVar[tuple[str, ...]] = (
        "Look at the order of `betas`: the first one is of the mean of the gradient, usually 0.9, and the second one of its "
        "square, usually 0.95 to 0.999.",
    )
    source: ClassVar[str] = "Reddi et al. 2018: Adam converges with a first beta below the root of the second one"
    consequence: ClassVar[str] = (
        "The average of the gradients then spans more steps than that of their squares, so that steps can become very large."
    )
    false_alarm: ClassVar[str] = (
        "Betas from a search may be in this order on purpose. Accept the result if the training is stable with them."
    )

    def run(self, trial: Trial) -> CheckResult:
        count = 0
        for number, optimizer in enumerate(trial.optimizers):
            for group in optimizer.param_groups:
                betas = group.get("betas")
                if not isinstance(betas, (tuple, list)) or len(betas) != 2 or not all(map(_is_on_host, betas)):
                    continue
                count += 1
                first, second = map(float, betas)
                if first > second**0.5:
                    text = f"optimizer {number} ({type(optimizer).__name__}) has betas of {first:g} and {second:g}"
                    return self.warned([""], f"{text}, the larger one for the gradient", first, second)
        if not count:
            return self.passed("no optimizer has two betas")
        return self.passed(f"the betas of {counted(count, 'parameter group')} are in order")


@dataclass(frozen=True, kw_only=True)
class DropoutTooHigh(Check):
    """Successive dropouts together keep more than next to nothing.

    Dropouts with no layer between them count as one. The shares that dropouts keep are multiplied along a path from one to the
    next, which ends where paths meet, as behind a residual block. A dropout of the input itself may be high on purpose, as in
    autoencoders that learn to fill gaps.

    Args:
        most: the smallest share of dropped elements of one dropout that is too large. Several may together keep what two of
            this share keep.
    """

    most: float = rules.DropoutTooHigh.most
    probes: ClassVar[tuple[str, ...]] = ("dropouts",)
    next_steps: ClassVar[tuple[str, ...]] = rules.DropoutTooHigh.next_steps
    source: ClassVar[str] = rules.DropoutTooHigh.source
    not_shown: ClassVar[str] = "dropout that grows later in the training"

    def run(self, trial: Trial) -> CheckResult:
        dropouts = [each for each in trial.step.dropouts if not each.is_of_input]
        if not dropouts:
            return self.passed("nothing behind the first layer is dropped")
        highest = max(dropouts, key=lambda each: each.rate)
        if highest.rate >= self.most:
            text = f"drops {highest.rate:.0%} of what it gets"
            if highest.is_joined:
                text = f"this dropout and those before it with no layer between them drop {highest.rate:.0%} together"
            return self.warned([highest.row], text, highest.rate, self.most)
        least = min(dropouts, key=lambda each: each.kept)
        limit = (1 - self.most) ** 2
        if least.count > 1 and least.kept < limit:
            text = f"{least.count} successive dropouts, of which this is the last, keep {least.kept:.2g} together"
            return self.warned([least.row], text, 1 - least.kept, 1 - limit)
        text = f"{counted(len(dropouts), 'dropout')}; at least {least.kept:.2g} is kept"
        return self.passed(text, 1 - least.kept, 1 - limit)


def _is_on_host(beta: Any) -> bool:
    return isinstance(beta, (int, float))


CHECKS: Final[tuple[Check, ...]] = (SwappedBetas(), DropoutTooHigh())
"""The checks on settings, with their defaults."""
