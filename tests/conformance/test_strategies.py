"""FSDP and DeepSpeed: what would be incorrect is refused before training, with the reason and the alternative; the rest works.

Neither runs here (Lightning refuses FSDP without an accelerator, DeepSpeed is not installed), so classes of the same name
stand in for Lightning's; what is tested is the check, and that rules on modules pass it.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.strategies import SingleDeviceStrategy

from lightning_hooks import (
    ActivationCapture,
    ActivationTransforms,
    Apply,
    CustomHooks,
    GradientTransforms,
    Hook,
    StatsMonitor,
    UnsupportedError,
    Watch,
    instrument,
)
from lightning_hooks.transforms import ClipByGlobalNorm, Scale
from tests.callbacks.models import Net, assert_clean, data, trainer_of
from tests.conformance._lifecycle_tools import see


def stand_in(name: str) -> Any:
    return type(name, (SingleDeviceStrategy,), {})(device="cpu")


def fit(root: Path, strategy: str, *callbacks: Callback, **options: Any) -> Net:
    model = Net()
    try:
        trainer_of(root, *callbacks, strategy=stand_in(strategy), **options).fit(model, data(2))
    finally:
        assert_clean(model)
    return model


ON_PARAMETERS: dict[str, tuple[str, Any]] = {
    "StatsMonitor by default": (r"the default watch\[1\]", lambda: StatsMonitor()),
    "Watch(params=)": (r"watch\[1\]", lambda: StatsMonitor([Watch(modules="*"), Watch(params="*", tensors="param")])),
    "when step": (r"apply\[0\]", lambda: GradientTransforms([Apply(ClipByGlobalNorm(1.0), params="*")])),
    "when backward": (r"apply\[0\]", lambda: GradientTransforms([Apply(Scale(0.5), params="*", when="backward")])),
    "Hook(params=)": (r"hooks\[0\]", lambda: CustomHooks([Hook(see, kind="param_grad", params="*")])),
}


@pytest.mark.parametrize("what", ON_PARAMETERS)
@pytest.mark.parametrize("strategy", ["FSDPStrategy", "DeepSpeedStrategy"])
def test_a_rule_on_parameters_is_refused_before_training(tmp_path: Path, strategy: str, what: str) -> None:
    place, make = ON_PARAMETERS[what]
    first = StatsMonitor([Watch(modules="*")], prefix="first/")
    with pytest.raises(UnsupportedError, match=rf"^{place}\.params: with {strategy} .*; use ModelParallelStrategy \(FSDP2\)"):
        fit(tmp_path, strategy, first, make())


@pytest.mark.parametrize("strategy", ["FSDPStrategy", "DeepSpeedStrategy"])
def test_rules_on_modules_work(tmp_path: Path, strategy: str) -> None:
    monitor = StatsMonitor([Watch(modules="*")])
    transforms = GradientTransforms([Apply(Scale(0.5), modules="body.0")])
    changed = ActivationTransforms([Apply(Scale(0.5), modules="body.0")])
    hooks = CustomHooks([Hook(see, kind="forward", modules="*"), Hook(see, kind="optimizer_step_post")])
    capture = ActivationCapture(modules="body.0", every_n_steps=1, folder=tmp_path / "captures")
    fit(tmp_path, strategy, monitor, transforms, changed, hooks, capture)
    assert "output_grad_norm/body.0" in monitor.latest


IN_16_BITS: dict[str, Any] = {
    "StatsMonitor": lambda folder: StatsMonitor([Watch(modules="*", tensors=["output", "output_grad"])]),
    "StatsMonitor by default": lambda folder: StatsMonitor([Watch(modules="*")]),
    "GradientTransforms": lambda folder: GradientTransforms([Apply(Scale(0.5), modules="body.0")]),
    "ActivationCapture": lambda folder: ActivationCapture(
        modules="body.0", tensor="output_grad", every_n_steps=1, folder=folder / "captures"
    ),
}


@pytest.mark.parametrize("name", IN_16_BITS)
def test_gradients_under_the_loss_scale_of_deepspeed_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnsupportedError, match=r"'output_grad' with DeepSpeedStrategy in 16 bits .*precision='bf16-mixed'"):
        fit(tmp_path, "DeepSpeedStrategy", IN_16_BITS[name](tmp_path), precision="16-true")


def test_activations_under_the_loss_scale_of_deepspeed_are_fine(tmp_path: Path) -> None:
    monitor = StatsMonitor([Watch(modules="*", tensors="output")])
    fit(tmp_path, "DeepSpeedStrategy", monitor, precision="bf16-true")
    assert "output_norm/body.0" in monitor.latest


def test_other_strategies_are_not_refused(tmp_path: Path) -> None:
    fit(tmp_path, "MyStrategy", StatsMonitor())


@pytest.mark.parametrize(
    "make", [lambda: StatsMonitor(), lambda: GradientTransforms([Apply(Scale(0.5), params="*")])], ids=["monitor", "transforms"]
)
def test_a_device_without_float64_is_refused_before_training(tmp_path: Path, make: Any) -> None:
    class SaysSo(Callback):
        """There is no such device here."""

        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            trainer.strategy._root_device = torch.device("mps")

    model, callback = Net(), make()
    callback.origin = "mine.yaml: callbacks[0]"
    said = rf"^mine\.yaml: callbacks\[0\]: {type(callback).__name__}: the model is on the device 'mps'"
    with pytest.raises(UnsupportedError, match=f"{said}, which has no float64 numbers.* use accelerator='cpu'"):
        trainer_of(tmp_path, SaysSo(), callback).fit(model, data(2))
    assert_clean(model)


def test_a_loop_on_a_device_without_float64_is_refused() -> None:
    class Elsewhere(torch.nn.Linear):
        def parameters(self, recurse: bool = True) -> Any:
            return iter([SimpleNamespace(device=torch.device("mps"))])

    with pytest.raises(UnsupportedError, match="'mps'"):
        instrument(Elsewhere(2, 2), [StatsMonitor([Watch(params="*")])])
