"""Modules that a rule matched and torch never calls are named once, whatever the rule does."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lightning_hooks import (
    ActivationCapture,
    ActivationTransforms,
    Apply,
    CustomHooks,
    GradientTransforms,
    Hook,
    StatsMonitor,
    Watch,
    instrument,
)
from lightning_hooks.transforms import Scale

NAME = "attention.out_proj"  # Torch reads the weight of this module and never calls it.


class Attends(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.attention(x, x, x)[0]
        return y

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return self(batch).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def nothing(*_: Any) -> None:
    """A hook."""


def said_in_a_fit(tmp_path: Path, *callbacks: Any, fits: int = 1) -> list[str]:
    quiet: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    trainer = Trainer(
        default_root_dir=tmp_path, max_epochs=2, logger=False, accelerator="cpu", callbacks=list(callbacks), **quiet
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(fits):
            trainer.fit(Attends(), DataLoader([torch.randn(2, 3, 4) for _ in range(3)], batch_size=None))
            trainer.fit_loop.max_epochs = 4
    return [str(each.message) for each in caught if "not called" in str(each.message)]


CALLBACKS = {
    "StatsMonitor: watch": lambda: StatsMonitor([Watch(modules=NAME)]),
    "GradientTransforms: apply[0]": lambda: GradientTransforms([Apply(Scale(2.0), modules=NAME)]),
    "ActivationTransforms: apply[0]": lambda: ActivationTransforms([Apply(Scale(2.0), modules=NAME)]),
    "CustomHooks: hooks[0]": lambda: CustomHooks([Hook(nothing, kind="forward", modules=NAME)]),
    "ActivationCapture: modules": lambda: ActivationCapture(NAME, every_n_steps=1),
}


@pytest.mark.parametrize("rule", CALLBACKS)
def test_a_module_that_is_never_called_is_named_with_its_rule(rule: str, tmp_path: Path) -> None:
    (said,) = said_in_a_fit(tmp_path, CALLBACKS[rule](), fits=2)
    expected = f"matched modules were not called in the first step: {NAME} (NonDynamicallyQuantizableLinear; {rule}). Usual"
    assert said.startswith(expected)


def test_rules_of_several_callbacks_are_in_one_warning(tmp_path: Path) -> None:
    (said,) = said_in_a_fit(tmp_path, *(make() for make in CALLBACKS.values()))
    assert f"{NAME} (NonDynamicallyQuantizableLinear; {', '.join(CALLBACKS)})" in said


def test_modules_that_are_called_are_not_named(tmp_path: Path) -> None:
    rules = [Apply(Scale(2.0), modules="attention")]
    assert (
        said_in_a_fit(tmp_path, GradientTransforms(rules), CustomHooks([Hook(nothing, kind="forward", modules="attention")]))
        == []
    )


class Alone(nn.Module):
    """Calls the first of its layers only if it is told to."""

    def __init__(self, calls_first: bool) -> None:
        super().__init__()
        self.calls_first = calls_first
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x) if self.calls_first else x @ self.first.weight
        y: Tensor = hidden @ self.second.weight.T
        return y


@pytest.mark.parametrize("calls_first", [True, False])
def test_the_modules_of_default_rules_are_named_only_if_none_is_called(calls_first: bool) -> None:
    model = Alone(calls_first)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with instrument(model, [StatsMonitor()], optimizer=optimizer):
            model(torch.randn(2, 4)).sum().backward()
            optimizer.step()
    said = [str(each.message) for each in caught]
    assert len(said) == (0 if calls_first else 1)
    assert all("not called in the first step: first, second (Linear; watch)" in each for each in said)


def test_a_plain_loop_names_them_too() -> None:
    model = Attends()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    apply = [Apply(Scale(2.0), modules=NAME)]
    with (
        pytest.warns(UserWarning, match=rf"first step: {NAME} \(NonDyn\w+; watch, apply\[0\]\)"),
        instrument(model, [StatsMonitor([Watch(modules=NAME)]), GradientTransforms(apply)], optimizer=optimizer),
    ):
        model(torch.randn(2, 3, 4)).sum().backward()
        optimizer.step()
