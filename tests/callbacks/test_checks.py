"""Checks before a run are functions of the resolved rules and of how the run trains: `fit` and `match` raise the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback

from lightning_hooks import (
    ActivationCapture,
    Apply,
    CustomHooks,
    GradientTransforms,
    Hook,
    HooksError,
    NoMatchError,
    RuleError,
    StatsMonitor,
    UnsupportedError,
    Watch,
)
from lightning_hooks.callbacks._checks import Earlier, Setting, refuse_for_strategy, refuse_setting, setting_of
from lightning_hooks.callbacks._config import load_callbacks
from lightning_hooks.callbacks._ours import matched
from lightning_hooks.hooks import print_shapes
from lightning_hooks.transforms import Scale, ZeroNonFinite
from tests.callbacks.models import Net, assert_clean, data, trainer_of

OUTPUT = [Watch(modules="body.0", tensors="output", stats="mean")]
MICRO = [Watch(params="*", tensors="grad", stats="micro_cosine")]


def error_of(does: Any) -> str:
    with pytest.raises(HooksError) as caught:
        does()
    return f"{type(caught.value).__name__}: {caught.value}"


WRONG: dict[str, Any] = {
    "two monitors with the same tags": lambda: [StatsMonitor(OUTPUT), StatsMonitor(OUTPUT)],
    "micro-batches behind a transform": lambda: [GradientTransforms([Apply(Scale(0.5), params="*")]), StatsMonitor(MICRO)],
    "scalars that match nothing": lambda: [StatsMonitor(OUTPUT, scalars="nowhere")],
    "two captures in the default folder": lambda: [ActivationCapture("body.0", every_n_steps=1) for _ in range(2)],
    "two captures in one folder": lambda: [
        ActivationCapture("body.0", every_n_steps=1, folder=folder) for folder in ("kept", Path("kept/../kept"))
    ],
    "a rule that matches nothing": lambda: [StatsMonitor([Watch(modules="nowhere")])],
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_match_and_a_fit_give_the_same_error(tmp_path: Path, wrong: str) -> None:
    def fit() -> None:
        trainer_of(tmp_path, *WRONG[wrong]()).fit(Net(), data(1))

    def match() -> None:
        list(matched(trainer_of(tmp_path, *WRONG[wrong]()), Net()))

    assert error_of(match) == error_of(fit)


TWICE = """
callbacks:
  - {class_path: StatsMonitor, init_args: {watch: [{modules: body.0, tensors: output, stats: mean}], prefix: ""}}
  - {class_path: StatsMonitor, init_args: {watch: [{modules: body.0, tensors: output, stats: mean}], prefix: ""}}
"""


def test_an_error_of_a_callback_from_a_file_begins_with_the_file_in_a_match_as_in_a_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "hooks.yaml"
    file.write_text(TWICE)
    monkeypatch.setenv("LIGHTNING_HOOKS_CONFIG", str(file))

    def fit() -> None:
        trainer_of(tmp_path).fit(Net(), data(1))

    def match() -> None:
        list(matched(trainer_of(tmp_path), Net()))

    said = error_of(match)
    assert said == error_of(fit)
    assert said.startswith(f"RuleError: LIGHTNING_HOOKS_CONFIG: {file}: callbacks[1]: StatsMonitor: prefix: two StatsMonitors")
    monitor = load_callbacks(file, "LIGHTNING_HOOKS_CONFIG")[0]
    assert isinstance(monitor, StatsMonitor)
    monitor.scalars = ["nowhere"]
    with pytest.raises(NoMatchError, match=r"^LIGHTNING_HOOKS_CONFIG: .*: callbacks\[0\]: StatsMonitor: scalars"):
        monitor.match(Net())


def test_a_match_of_one_callback_gives_the_error_of_a_fit() -> None:
    with pytest.raises(NoMatchError, match="scalars"):
        StatsMonitor(OUTPUT, scalars="nowhere").match(Net())


def test_a_match_gives_every_report_before_the_error(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, StatsMonitor(OUTPUT), StatsMonitor(OUTPUT))
    reports = []
    with pytest.raises(RuleError, match="two StatsMonitors would write"):
        for _, report in matched(trainer, Net()):
            reports.append(report.names)
    assert reports == [["body.0"], ["body.0"]]


def test_monitors_of_stages_that_a_fit_does_not_have_are_not_checked_with_those_of_a_fit(tmp_path: Path) -> None:
    monitors = [StatsMonitor(OUTPUT, stages=["test"]), StatsMonitor(OUTPUT, stages=["test"])]
    assert len(list(matched(trainer_of(tmp_path, *monitors), Net()))) == 2


@pytest.mark.parametrize(
    "callback",
    [
        StatsMonitor([Watch(params="*")]),
        GradientTransforms([Apply(Scale(0.5), params="*")]),
        CustomHooks([Hook(print_shapes, kind="param_grad", params="*")]),
    ],
    ids=lambda callback: type(callback).__name__,
)
def test_rules_on_parameters_are_refused_with_a_strategy_that_shards_them_itself(callback: Any) -> None:
    setting = Setting(strategy=("FSDPStrategy", "ParallelStrategy", "object"), alone=False)
    with pytest.raises(UnsupportedError, match=r"\[0\]\.params: with FSDPStrategy rules on parameters are not supported"):
        callback._job.refuse_setting(setting)
        callback._job.check(callback._job.resolve(Net()), setting, Earlier())


def test_gradients_that_flow_are_refused_under_a_scale_that_deepspeed_hides() -> None:
    setting = Setting(strategy=("DeepSpeedStrategy",), precision="16-mixed")
    rule = Watch(modules="*", tensors=["output", "output_grad"])
    with pytest.raises(UnsupportedError, match="^watch: 'output_grad' with DeepSpeedStrategy in 16 bits"):
        refuse_for_strategy(setting, [("watch", rule, rule.tensors or ())])
    refuse_for_strategy(Setting(strategy=("DeepSpeedStrategy",), precision="bf16-mixed"), [("watch", rule, rule.tensors or ())])


@pytest.mark.parametrize(
    ("function", "stages", "alone", "refused"),
    [
        ("fit", ["train", "validate"], False, "validate"),
        ("fit", ["train"], False, None),
        ("fit", ["validate"], True, None),
        ("test", ["test"], False, "test"),
        ("test", ["validate"], False, None),
    ],
)
def test_a_stage_that_a_process_may_skip(function: str, stages: list[str], alone: bool, refused: str | None) -> None:
    setting = Setting(function, may_skip=True, alone=alone)
    if refused is None:
        refuse_setting(setting, stages)
    else:
        with pytest.raises(UnsupportedError, match=f"a process without batches skips '{refused}'"):
            refuse_setting(setting, stages)
        refuse_setting(Setting(function, may_skip=False, alone=alone), stages)


def test_a_device_without_float64_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="'mps'"):
        refuse_setting(Setting(device=torch.device("mps")), ["train"])


def test_a_transform_that_hides_an_overflow_is_refused_before_a_fit_too(tmp_path: Path) -> None:
    transforms = GradientTransforms([Apply(ZeroNonFinite(), modules="body.0")])._job
    resolved = transforms.resolve(Net())
    with pytest.raises(UnsupportedError, match="in backward would hide the overflow from the loss scaler"):
        transforms.check(resolved, Setting(is_scaled=True), Earlier())
    assert transforms.check(resolved, Setting(), Earlier()).transforms == tuple(resolved)


def test_a_check_changes_nothing() -> None:
    monitor, model = StatsMonitor(OUTPUT)._job, Net()
    transforms = GradientTransforms([Apply(Scale(0.5), params="*")])._job
    earlier = Earlier()
    resolved = monitor.resolve(model)
    first, second = (monitor.check(resolved, Setting(), earlier) for _ in range(2))
    assert [each.prefix for each in first.written] == [each.prefix for each in second.written] == [""]
    assert earlier == Earlier()
    assert len(transforms.check(transforms.resolve(model), Setting(), first).written) == 1
    assert_clean(model)


def test_the_setting_is_that_of_the_run(tmp_path: Path) -> None:
    seen: list[Setting] = []

    class Asks(Callback):
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            seen.append(setting_of(trainer, pl_module))

    trainer = trainer_of(tmp_path, Asks(), precision="bf16-mixed")
    before = setting_of(trainer, model := Net())
    assert before.function == "fit" and before.device is None and before.optimizers == () and before.alone
    assert "SingleDeviceStrategy" in before.strategy and before.precision == "bf16-mixed" and not before.is_scaled
    trainer.fit(model, data(1))
    assert seen[0].device == torch.device("cpu") and [type(each).__name__ for each in seen[0].optimizers] == ["SGD"]


def test_captures_that_write_nothing_to_a_common_folder_are_allowed(tmp_path: Path) -> None:
    captures = [
        ActivationCapture("body.0", every_n_steps=1),
        ActivationCapture("body.0", every_n_steps=1, folder=tmp_path / "other"),
        ActivationCapture("body.0", stages=["predict"]),
        ActivationCapture("nowhere", every_n_steps=1, strict=False),
    ]
    with pytest.warns(UserWarning, match="nowhere"):
        assert len(list(matched(trainer_of(tmp_path, *captures), Net()))) == 4


def test_a_capture_into_the_default_folder_of_another_is_refused(tmp_path: Path) -> None:
    captures = [
        ActivationCapture("body.0", every_n_steps=1),
        ActivationCapture("body.0", every_n_steps=1, folder=tmp_path / "captures" / "run_0"),
    ]
    with pytest.raises(RuleError, match="folder: two ActivationCapture would write into .*captures/run_0; give one another"):
        trainer_of(tmp_path, *captures).fit(Net(), data(1))


def test_the_folder_of_two_captures(tmp_path: Path) -> None:
    captures = [ActivationCapture("body.0", every_n_steps=1, folder=tmp_path / "kept") for _ in range(2)]
    model = Net()
    with pytest.raises(RuleError, match="folder: two ActivationCapture would write into"):
        trainer_of(tmp_path, *captures).fit(model, data(1))
    assert_clean(model)
