"""Small trainings in a plain loop or a Trainer, and what is said of them."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_hooks import HealthMonitor, StatsMonitor, instrument
from lightning_hooks.health.finding import Cause, Finding
from lightning_hooks.health.rule import Severity

Batch = tuple[Tensor, Tensor]
Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]


def fails_until(reason: str, raises: type[Exception] | tuple[type[Exception], ...] = AssertionError) -> pytest.MarkDecorator:
    """The mark of a test that fails today.

    Args:
        reason: what must become true for the test to pass, as a sentence.
        raises: how the test fails. Any other exception is an error of the test.
    """
    return pytest.mark.xfail(reason=reason, raises=raises, strict=True)


class Said(NamedTuple):
    """What is said of a training.

    Args:
        findings: of every severity, also those that are over.
        causes: those that stand at the end.
        losses: of all steps.
        told: the text on standard output and standard error.
        warnings: the messages of this package's warnings.
    """

    findings: Sequence[Finding]
    causes: Sequence[Cause]
    losses: Sequence[float] = ()
    told: str = ""
    warnings: Sequence[str] = ()

    @property
    def alarms(self) -> list[str]:
        """The findings above `info`: the rule, the step and the message."""
        return [f"{each.rule} at {each.first_step}: {each.message}" for each in self._above_info]

    @property
    def names(self) -> set[str]:
        """The names of all causes, and of the rules whose findings are above `info`."""
        return {cause.name for cause in self.causes} | {finding.rule for finding in self._above_info}

    @property
    def words(self) -> str:
        """The messages and the advice of all causes and of the findings above `info`."""
        return "\n".join(line for each in (*self.causes, *self._above_info) for line in (each.message, *each.next_steps))

    @property
    def _above_info(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity is not Severity.INFO]


def cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(x), y)


def squared_error(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.mse_loss(model(x), y)


def train(
    model: nn.Module,
    optimizer: Optimizer,
    batches: Iterable[Batch],
    loss: Loss = cross_entropy,
    *,
    clears: bool = True,
    before_step: Callable[[], Any] | None = None,
    after_step: Callable[[], Any] | None = None,
) -> Said:
    """Train in a plain loop that health rules watch.

    Args:
        model: the model.
        optimizer: of all its parameters.
        batches: inputs and targets, one pair for each step.
        loss: the loss of a model, inputs and targets.
        clears: whether the loop clears the gradients before each backward pass.
        before_step: called between the backward pass and the step.
        after_step: called after the step.
    """
    losses = []
    with warnings.catch_warnings(record=True) as caught, redirect_stderr(io.StringIO()) as told:
        warnings.simplefilter("always")
        with instrument(model, [StatsMonitor(), health := HealthMonitor()], optimizer=optimizer) as watched:
            for x, y in batches:
                if clears:
                    optimizer.zero_grad()
                value = loss(model, x, y)
                watched.note_loss(value)
                value.backward()
                if before_step is not None:
                    before_step()
                optimizer.step()
                if after_step is not None:
                    after_step()
                losses.append(value.item())
    return Said(health.findings, health.causes, losses, told.getvalue(), ours(caught))


def fit(trainer: Any, monitor: Any, module: nn.Module, data: Any) -> Said:
    """Train with a Trainer that has a `HealthMonitor`."""
    told = io.StringIO()
    with warnings.catch_warnings(record=True) as caught, redirect_stderr(told), redirect_stdout(told):
        warnings.simplefilter("always")
        trainer.fit(module, data)
    return Said(monitor.findings, monitor.causes, (), told.getvalue(), ours(caught))


def ours(caught: Iterable[warnings.WarningMessage]) -> list[str]:
    """The messages of the warnings that name a rule, a callback or a module of this package."""
    return [str(each.message) for each in caught if not issubclass(each.category, DeprecationWarning) and _is_ours(each)]


def _is_ours(warning: warnings.WarningMessage) -> bool:
    return "lightning_hooks" in warning.filename or warning.filename == __file__


@cache
def digits() -> Batch:
    """1,797 images of shape [1, 8, 8] between 0 and 1, and their labels."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    return torch.tensor(pixels, dtype=torch.float32).view(-1, 1, 8, 8) / 16, torch.tensor(labels)


@cache
def large_digits() -> Batch:
    """The digits as images of shape [1, 28, 28]."""
    images, labels = digits()
    return nn.functional.interpolate(images, size=(28, 28), mode="bilinear"), labels


def drawn(data: Batch, steps: int, size: int = 32, seed: int = 0) -> Iterator[Batch]:
    """Random batches of data, the same ones for the same seed."""
    for step in range(steps):
        chance = torch.Generator().manual_seed(step + 999 * seed)
        chosen = torch.randint(len(data[0]), (size,), generator=chance)
        yield data[0][chosen], data[1][chosen]


def perceptron(*widths: int, bias: bool = True) -> nn.Sequential:
    """Linear layers with a ReLU between them, behind a `Flatten`."""
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Flatten()]
    for width, following in zip(widths, widths[1:], strict=False):
        layers += [nn.Linear(width, following, bias=bias), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def last_mean(losses: Sequence[float], count: int = 20) -> float:
    return sum(losses[-count:]) / count
