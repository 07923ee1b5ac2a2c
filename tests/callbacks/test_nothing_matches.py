"""`strict=False` and no rule matches anything: one callback does nothing, says so once, and nothing else is disturbed."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lightning_hooks import (
    ActivationCapture,
    ActivationTransforms,
    Apply,
    CustomHooks,
    GradientTransforms,
    Hook,
    StatsMonitor,
    Watch,
    assert_no_hooks,
    instrument,
)
from lightning_hooks.transforms import Scale
from tests.callbacks._tiny import Keeper, Line, loader, make

NOWHERE = "no_such_layer"


def hook(module: Any, args: Any, output: Any) -> None:
    raise AssertionError("never called")


CALLBACKS = {
    "StatsMonitor": (
        lambda: StatsMonitor([Watch(modules=NOWHERE, strict=False), Watch(params=NOWHERE, strict=False)]),
        "watch[0], watch[1]",
    ),
    "GradientTransforms": (lambda: GradientTransforms([Apply(Scale(2.0), params=NOWHERE, strict=False)]), "apply[0]"),
    "ActivationTransforms": (lambda: ActivationTransforms([Apply(Scale(2.0), modules=NOWHERE, strict=False)]), "apply[0]"),
    "CustomHooks": (lambda: CustomHooks([Hook(hook, kind="forward", modules=NOWHERE, strict=False)]), "hooks[0]"),
    "ActivationCapture": (
        lambda: ActivationCapture(NOWHERE, every_n_steps=1, strict=False),
        "modules=('no_such_layer',)",
    ),
}


@pytest.mark.parametrize("name", CALLBACKS)
def test_a_callback_says_so_once_and_the_others_work_on(tmp_path: Path, name: str) -> None:
    build, rules = CALLBACKS[name]
    idle, keeper, model = build(), Keeper(), Line()
    monitor = StatsMonitor([Watch(params="*", tensors="grad", stats="norm")])
    halve = GradientTransforms([Apply(Scale(0.5), params="*")])
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        make(tmp_path, idle, monitor, halve, logger=keeper).fit(model, loader([3.0, 4.0], [3.0, 4.0]))
    texts = [str(warning.message) for warning in said]
    assert texts.count(f"{name}: no rule matches anything ({rules}); it does nothing in this run") == 1
    assert not [text for text in texts if "Set strict=False" in text]
    assert [line["grad_norm/layer.weight"] for line in keeper.lines.values()] == [5.0, 5.0]
    assert model.w == pytest.approx([-3.0, -4.0])
    assert not (tmp_path / "captures").exists()
    assert_no_hooks(model)


@pytest.mark.filterwarnings("ignore:.*matches (nothing|anything)")
def test_a_monitor_alone_writes_nothing(tmp_path: Path) -> None:
    monitor, keeper = StatsMonitor([Watch(modules=NOWHERE, strict=False)], stages=["train", "validate"]), Keeper()
    trainer = make(tmp_path, monitor, logger=keeper)
    model = Line()
    trainer.fit(model, loader([3.0, 4.0]))
    assert monitor.latest == {}
    assert not [tag for line in keeper.lines.values() for tag in line if tag != "epoch"]
    assert len(monitor.match(model).lines) == 0
    monitor.watch = [Watch(params="*", tensors="grad", stats="norm")]
    monitor.stages = ("train",)
    make(tmp_path, monitor, logger=keeper).fit(model, loader([3.0, 4.0]))
    assert monitor.latest["grad_norm/layer.weight"] == 5.0


@pytest.mark.filterwarnings("ignore:.*matches nothing")
def test_a_stage_for_which_nothing_matches_is_skipped(tmp_path: Path) -> None:
    class Validated(Line):
        def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
            self.layer(batch)

    rules = [Watch(modules=NOWHERE, strict=False), Watch(params="*", tensors="grad", stats="norm")]
    monitor = StatsMonitor(rules, stages=["train", "validate"])
    with pytest.warns(UserWarning, match=r"^stages: no rule matches anything to watch in 'validate'$"):
        make(tmp_path, monitor).fit(Validated(), loader([3.0, 4.0]), loader([3.0, 4.0]))
    assert monitor.latest["grad_norm/layer.weight"] == 5.0


@pytest.mark.filterwarnings("ignore:.*matches (nothing|anything)")
def test_instrument_does_nothing(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 1, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    start = model[0].weight.detach().clone()
    with instrument(
        model,
        [
            StatsMonitor([Watch(modules=NOWHERE, strict=False)]),
            GradientTransforms(
                [Apply(Scale(0.0), params=NOWHERE, strict=False), Apply(Scale(0.0), modules=NOWHERE, strict=False)]
            ),
            CustomHooks([Hook(hook, kind="forward", modules=NOWHERE, strict=False)]),
        ],
        optimizer=optimizer,
    ) as watched:
        model(torch.tensor([[3.0, 4.0]])).sum().backward()
        optimizer.step()
    assert watched.latest == {}
    assert torch.equal(model[0].weight, start - torch.tensor([[3.0, 4.0]]))
    assert_no_hooks(model)


@pytest.mark.filterwarnings("ignore:.*matches anything")
def test_the_advice_is_not_to_do_what_is_done() -> None:
    with pytest.warns(UserWarning, match=r"^watch\[0\]\.modules: 'no_such_layer' matches nothing; the nearest names are '0'$"):
        with instrument(nn.Sequential(nn.ReLU()), [StatsMonitor([Watch(modules=NOWHERE, strict=False)])]):
            pass
