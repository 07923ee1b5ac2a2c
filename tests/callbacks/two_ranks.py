"""What two processes that train together do: each function runs on both, and returns what its test compares."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lightning_hooks import ActivationCapture, ActivationTransforms, Apply, CustomHooks, Hook
from lightning_hooks.transforms import AddNoise
from tests.callbacks._tiny import Line
from tests.callbacks.models import trainer_of
from tests.callbacks.test_capture import Encoder, rows


def captures(folder: Path) -> None:
    capture = ActivationCapture("encoder", stages=["train", "predict"], reduce="max", folder=None)
    trainer = trainer_of(folder, capture, devices=2, strategy="ddp_find_unused_parameters_true", logger=False)
    model = Encoder()
    trainer.fit(model, rows(8))
    trainer.predict(model, rows(10), return_predictions=False)


def draws_noise(folder: Path) -> dict[str, Any]:
    drawn: list[float] = []

    def note(module: nn.Module, args: Any, output: Tensor) -> None:
        drawn.append(output.sum().item())

    torch.manual_seed(5)
    callbacks = [
        ActivationTransforms([Apply(AddNoise(1.0), modules="layer")]),
        CustomHooks(
            [
                Hook(note, kind="forward", modules="layer"),
                Hook("tests.callbacks.hook_calls.double", kind="param_grad", params="*"),
            ]
        ),
    ]
    model = Line()
    trainer_of(folder, *callbacks, devices=2, strategy="ddp", logger=False).fit(model, rows(8))
    return {"drawn": drawn, "w": model.w}
