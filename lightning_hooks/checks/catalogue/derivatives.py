"""The check that gradients are derivatives of the loss. It runs steps in float64, so it runs only if it is asked for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import torch
from torch import Tensor, nn
from typing_extensions import override

from lightning_hooks.checks.batch import changed_copy, generator
from lightning_hooks.checks.check import Check
from lightning_hooks.checks.probes.probe import Probe
from lightning_hooks.checks.result import CheckResult
from lightning_hooks.checks.trial import Trial
from lightning_hooks.errors import counted
from lightning_hooks.rules.patterns import Target


@dataclass(frozen=True, kw_only=True)
class GradientsAreRight(Check):
    """The gradient of each parameter is the derivative of the loss, as differences of losses in float64 show.

    Args:
        most: the largest difference from the derivative, as a share of it.
        most_parameters: the number of parameters that are tried one by one, if all together are wrong.
        distance: by how much parameters are moved to each side, as a share of their size.
    """

    enabled: bool = False
    most: float = 1e-3
    most_parameters: int = 200
    distance: float = 1e-6
    minima: ClassVar[Mapping[str, int]] = {"most_parameters": 1}
    next_steps: ClassVar[tuple[str, ...]] = (
        "Look at the `backward` of your own `autograd.Function`, and at hooks that change gradients.",
    )
    source: ClassVar[str] = "central differences in float64 are right to 1e-8 where the loss is smooth"
    consequence: ClassVar[str] = (
        "A wrong derivative lets the optimizer walk in a wrong direction. The loss may still fall, only slower and to a worse "
        "end."
    )
    false_alarm: ClassVar[str] = (
        "A gradient that is changed on purpose is told too, as by a straight-through estimator or a gradient reversal layer. "
        "Accept the result."
    )

    def run(self, trial: Trial) -> CheckResult:
        if trial.training.precision != "float32":
            return self.skipped(f"the training runs in {trial.training.precision}, in which differences of losses are noise")
        trainable = [each for each in trial.trainable if each.value.is_floating_point()]
        if not trainable:
            return self.skipped("the model has no trainable parameter")
        directions = {each.name: _direction(each, i) for i, each in enumerate(trainable)}
        probe = _Slopes(trainable, directions)
        record = trial.run(probes=("losses", probe), batch=_doubled(trial.batch), before=_to_double)
        if len(record.losses) != 1:
            return self.skipped(f"a step has {len(record.losses)} losses, and it is not known which gradient belongs to which")
        slopes = probe.slopes
        error = self._error(trial, trainable, directions, slopes)
        if math.isnan(error):
            return self.skipped("the loss or a gradient is not finite; see NonFinite")
        if error <= self.most:
            names = counted(len(trainable), "parameter")
            return self.passed(f"the gradients of {names} are derivatives of the loss", error, self.most)
        wrong = []
        for each in trainable[: self.most_parameters]:
            one = self._error(trial, [each], directions, slopes)
            if one > self.most:
                wrong.append((one, each.name))
        if not wrong:
            return self.skipped(
                f"the gradients of all parameters together miss the derivative by {error:.2g}, but none alone does"
            )
        wrong.sort(reverse=True)
        text = f"the gradient differs from the derivative of the loss by {wrong[0][0]:.2g} of it"
        return self.failed([name for _, name in wrong], text, wrong[0][0], self.most)

    def _error(
        self,
        trial: Trial,
        moved: Sequence[Target[nn.Parameter]],
        directions: dict[str, Tensor],
        slopes: dict[str, float],
    ) -> float:
        """The difference of gradient and derivative along a direction, as a share of the larger of both."""
        losses = []
        for sign in (1, -1):

            def move(model: nn.Module, sign: int = sign) -> None:
                _to_double(model)
                for each in moved:
                    each.value.data.add_(directions[each.name].to(each.value.device), alpha=sign * self.distance)

            losses.append(trial.run(probes=("losses",), batch=_doubled(trial.batch), before=move).losses[0])
        derivative = (losses[0] - losses[1]) / (2 * self.distance)
        slope = sum(slopes.get(each.name, 0.0) for each in moved)
        # Below this size a derivative is lost in the rounding of the loss.
        noise = 1e-14 * max(abs(losses[0]), 1e-3) / self.distance * 10
        size = max(abs(derivative), abs(slope))
        return abs(derivative - slope) / size if not size <= noise / self.most else 0.0


class _Slopes(Probe):
    """Measures the slope of the loss along the direction of each parameter, by its first gradient.

    Args:
        trainable: the parameters.
        directions: by the name of the parameter.

    Attributes:
        slopes: by the name of the parameter; a parameter without a gradient has none.
    """

    def __init__(self, trainable: Sequence[Target[nn.Parameter]], directions: Mapping[str, Tensor]) -> None:
        self._trainable, self._directions = trainable, directions
        self.slopes: dict[str, float] = {}

    @override
    def after_backward(self, loss: Tensor) -> None:
        for each in self._trainable:
            if each.value.grad is not None and each.name not in self.slopes:
                self.slopes[each.name] = float((each.value.grad.double() * self._directions[each.name]).sum())


def _direction(target: Target[nn.Parameter], seed: int) -> Tensor:
    """A random direction of the size of the parameter; an embedding drops the gradient of its padding on purpose."""
    parameter = target.value
    chance = torch.randn(parameter.shape, generator=generator(seed), dtype=torch.float64).to(parameter.device)
    size = float(parameter.detach().double().square().mean().sqrt()) if parameter.numel() else 0.0
    padding = getattr(target.owner, "padding_idx", None)
    if padding is not None and parameter.dim() == 2:
        chance[padding] = 0.0
    return chance * (size or 0.1)


def _to_double(model: nn.Module) -> None:
    model.double()


def _doubled(batch: Any) -> Any:
    return changed_copy(
        batch, lambda _, tensor: tensor.detach().double() if tensor.is_floating_point() else tensor.detach().clone()
    )


CHECKS: Final[tuple[Check, ...]] = (GradientsAreRight(),)
"""The check, with its defaults."""
