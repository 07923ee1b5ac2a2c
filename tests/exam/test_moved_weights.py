"""Trainings in which code changes weights between two steps, by mistake or on purpose."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Rprop

from tests.exam._trainings import Said, digits, drawn, perceptron, train


def _trained(change: Callable[[nn.Sequential, int], object], kind: type = Adam, steps: int = 80, **options: float) -> Said:
    model, done = perceptron(64, 64, 10), iter(range(1, steps + 1))
    optimizer = kind(model.parameters(), **options)

    def after_step() -> None:
        with torch.no_grad():
            change(model, next(done))

    return train(model, optimizer, drawn(digits(), steps, 64), after_step=after_step)


def _shrink(model: nn.Sequential, step: int) -> None:
    for each in model.parameters():
        each.mul_(0.95)


def _draw_anew(model: nn.Sequential, step: int) -> None:
    if step == 40:
        nn.init.normal_(model[1].weight, std=3.0)


def _keep_norm(model: nn.Sequential, step: int) -> None:
    model[1].weight.div_(model[1].weight.norm(dim=1, keepdim=True))


def _clip(model: nn.Sequential, step: int) -> None:
    for each in model.parameters():
        each.clamp_(-0.1, 0.1)


@pytest.mark.parametrize(
    ("change", "first", "is_harmful"), [(_shrink, 1, False), (_draw_anew, 40, True), (_keep_norm, 1, False)]
)
def test_weights_that_code_changes_between_two_steps(change: Callable[..., object], first: int, is_harmful: bool) -> None:
    """That is a note, and a warning where the loss shows harm while it happens."""
    said = _trained(change)
    (finding,) = (each for each in said.findings if each.rule == "MovesBetweenSteps")
    assert finding.first_step == first and "1.weight" in finding.rows
    assert finding.severity == ("warning" if is_harmful else "info")


@pytest.mark.parametrize(
    ("kind", "options"),
    [(SGD, {"lr": 0.5, "momentum": 0.9}), (AdamW, {"lr": 0.01, "weight_decay": 0.1}), (Rprop, {"lr": 0.01})],
)
def test_weights_that_only_the_optimizer_changes(kind: type, options: dict[str, float]) -> None:
    """Large steps do not count, whatever the optimizer."""
    said = _trained(lambda model, step: None, kind, **options)
    assert "MovesBetweenSteps" not in {each.rule for each in said.findings}


def test_weights_that_are_clipped_on_purpose() -> None:
    """As in a Wasserstein GAN. Nothing above a note is said."""
    assert _trained(_clip).alarms == []
