"""A Trainer inside a Trainer, and two Trainers made from one list of callbacks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from lightning_hooks import ActivationTransforms, Apply, GradientTransforms, RuleError, StatsMonitor, Watch, assert_no_hooks
from lightning_hooks.callbacks.environment import VARIABLE
from lightning_hooks.transforms import Scale
from tests.callbacks._tiny import Keeper, Line, loader, make

BATCHES = [[3.0, 4.0], [3.0, 4.0], [3.0, 4.0]]
EVENTS = ["on_train_batch_start", "on_before_zero_grad", "on_train_batch_end", "on_validation_end", "on_train_epoch_end"]
HOOKS = """
callbacks:
  - class_path: StatsMonitor
    init_args:
      stages: [train, validate]
      watch:
        - {params: "*", tensors: [grad, update], stats: [norm]}
        - {modules: layer, tensors: [output], stats: [norm, count]}
"""


class Validated(Line):
    """Validation runs the layer on ones."""

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        self.layer(batch)


class Inside(Callback):
    """Does something with the model at an event of the outer fit, and leaves its trainer as it was."""

    def __init__(self, event: str, does: Callable[[LightningModule], Any]) -> None:
        self.done = 0

        def at(trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
            if trainer.sanity_checking:
                return
            training = pl_module.training
            does(pl_module)
            pl_module.train(training)
            pl_module.trainer = trainer
            self.done += 1

        setattr(self, event, at)


def monitor(**options: Any) -> StatsMonitor:
    rules = [
        Watch(params="*", tensors=["grad", "update"], stats="norm"),
        Watch(modules="layer", tensors="output", stats=["norm"]),
    ]
    return StatsMonitor(rules, stages=["train", "validate"], **options)


def validate(root: Path, keepers: list[Keeper], *callbacks: Callback) -> Callable[[LightningModule], Any]:
    def run(model: LightningModule) -> None:
        keepers.append(Keeper())
        own = [copy.deepcopy(callback) for callback in callbacks]
        make(root, *own, logger=keepers[-1]).validate(model, loader([1.0, 1.0], [1.0, 1.0]), verbose=False)

    return run


def rows(keeper: Keeper) -> dict[int, dict[str, float]]:
    """What a monitor wrote, without its own cost."""
    return {
        step: {tag: value for tag, value in line.items() if tag not in ("epoch", "run/overhead")}
        for step, line in keeper.lines.items()
    }


def fit(root: Path, *callbacks: Callback) -> dict[int, dict[str, float]]:
    keeper, model = Keeper(), Validated()
    make(root, *callbacks, logger=keeper, num_sanity_val_steps=0).fit(model, loader(*BATCHES), loader([1.0, 1.0]))
    assert_no_hooks(model)
    return rows(keeper)


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("first", [True, False], ids=["before the monitor", "after it"])
def test_a_validation_inside_a_fit_is_of_its_own_monitor_alone(tmp_path: Path, event: str, first: bool) -> None:
    plain = fit(tmp_path, monitor())
    keepers: list[Keeper] = []
    inside = Inside(event, validate(tmp_path, keepers, monitor()))
    watched = fit(tmp_path, *([inside, monitor()] if first else [monitor(), inside]))
    assert watched == plain
    assert inside.done == len(keepers) > 0
    assert all(any("val_output_norm/layer" in line for line in keeper.lines.values()) for keeper in keepers)


def test_callbacks_from_the_environment_in_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "hooks.yaml"
    path.write_text(HOOKS.replace(", count", "").replace("stages:", "prefix: ''\n      loggers: all\n      stages:"))
    monkeypatch.setenv(VARIABLE, str(path))
    monkeypatch.chdir(tmp_path)
    plain = fit(tmp_path)
    assert [step for step, line in plain.items() if "grad_norm/layer.weight" in line] == [0, 1, 2]
    keepers: list[Keeper] = []
    assert fit(tmp_path, Inside("on_train_batch_end", validate(tmp_path, keepers))) == plain
    assert len(keepers) == 3 and all(any("val_output_norm/layer" in x for x in k.lines.values()) for k in keepers)


def test_a_fit_inside_a_fit(tmp_path: Path) -> None:
    keepers: list[Keeper] = []

    def further(model: LightningModule) -> None:
        keepers.append(Keeper())
        start = copy.deepcopy(model.state_dict())
        make(tmp_path, monitor(), logger=keepers[-1]).fit(model, loader([1.0, 1.0]), loader([1.0, 1.0]))
        model.load_state_dict(start)

    plain = fit(tmp_path, monitor())
    assert fit(tmp_path, monitor(), Inside("on_train_batch_end", further)) == plain
    assert [keeper.lines[0]["grad_norm/layer.weight"] for keeper in keepers] == [pytest.approx(2**0.5)] * 3


def test_transforms_of_the_outer_fit_rest_while_the_inner_run_has_its_own(tmp_path: Path) -> None:
    outer = [
        GradientTransforms([Apply(Scale(0.5), params="*")]),
        ActivationTransforms([Apply(Scale(3.0), modules="layer", stages=["train", "validate"])]),
    ]
    plain = fit(tmp_path, *copy.deepcopy(outer), monitor())
    inside = Inside("on_train_batch_end", validate(tmp_path, [], monitor()))
    assert fit(tmp_path, *copy.deepcopy(outer), monitor(), inside) == plain


@pytest.mark.filterwarnings("ignore:SGD has stepped without Lightning's on_before_optimizer_step")
def test_one_warning_says_that_an_inner_trainer_has_stayed_the_trainer_of_the_module(tmp_path: Path) -> None:
    """Lightning calls the callbacks of `pl_module.trainer` when an optimizer steps."""

    class Stays(Callback):
        def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
            make(tmp_path).validate(pl_module, loader([1.0, 1.0]), verbose=False)
            pl_module.train()

    halved = GradientTransforms([Apply(Scale(0.5), params="*")])
    with pytest.warns(UserWarning, match="another Trainer") as seen:
        watched = fit(tmp_path, halved, monitor(), Stays())
    said = [str(each.message) for each in seen if "another Trainer" in str(each.message)]
    assert len(said) == 1 and "`pl_module.trainer = trainer` after the inner run puts this Trainer back" in said[0]
    assert [step for step, line in watched.items() if "grad_norm/layer.weight" in line] == [0]
    updates = {step: line["update_norm/layer.weight"] for step, line in watched.items() if "update_norm/layer.weight" in line}
    assert updates == {0: 2.5}
    assert [step for step, line in watched.items() if "output_norm/layer" in line] == [0, 1, 2]


def test_an_inner_run_that_fails_leaves_the_outer_one_at_work(tmp_path: Path) -> None:
    def fails(model: LightningModule) -> None:
        missing = StatsMonitor([Watch(modules="nowhere")], stages=["validate"])
        with pytest.raises(RuleError, match="nowhere"):
            make(tmp_path, monitor(), missing).validate(model, loader([1.0, 1.0]), verbose=False)

    assert fit(tmp_path, Inside("on_train_batch_end", fails), monitor()) == fit(tmp_path, monitor())


def test_one_callback_in_both_stays_with_the_outer_fit(tmp_path: Path) -> None:
    shared, plain = monitor(), fit(tmp_path, monitor())
    trainers = []

    def run(model: LightningModule) -> None:
        trainers.append(make(tmp_path, shared))
        trainers[-1].validate(model, loader([1.0, 1.0]), verbose=False)

    with pytest.warns(UserWarning, match=r"^StatsMonitor is in use by a run of another Trainer that has not ended"):
        assert fit(tmp_path, shared, Inside("on_train_batch_end", run)) == plain
    assert len(trainers) == 3


def test_two_trainers_from_one_list_of_callbacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "hooks.yaml"
    path.write_text(
        "callbacks:\n"
        "  - {class_path: StatsMonitor, init_args: {prefix: '', loggers: all, "
        "watch: [{params: '*', tensors: grad, stats: norm}]}}\n"
        "  - {class_path: GradientTransforms, init_args: {apply: [{params: '*', transform: {class_path: Scale, init_args: "
        "{factor: 0.5}}}]}}\n"
    )
    monkeypatch.setenv(VARIABLE, str(path))
    monkeypatch.chdir(tmp_path)
    listed: list[Callback] = [Callback()]
    options: dict[str, Any] = {"max_epochs": 1, "accelerator": "cpu", "devices": 1, "enable_progress_bar": False}
    options |= {"enable_model_summary": False, "enable_checkpointing": False, "log_every_n_steps": 1}
    for _ in range(3):
        keeper, model = Keeper(), Line()
        trainer = Trainer(callbacks=listed, logger=keeper, default_root_dir=tmp_path, **options)
        trainer.fit(model, loader([3.0, 4.0]))
        assert keeper.lines[0]["grad_norm/layer.weight"] == 5.0
        assert model.w == pytest.approx([-1.5, -2.0])  # halved once
        names = [type(callback).__name__ for callback in trainer.callbacks]  # type: ignore[attr-defined]
        assert names.count("StatsMonitor") == names.count("GradientTransforms") == 1
        assert_no_hooks(model)


def test_an_error_at_fit_start_names_the_file_and_the_callback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "hooks.yaml"
    path.write_text("callbacks: [StatsMonitor, {class_path: ActivationCapture, init_args: {modules: x, every_n_steps: 1}}]")
    monkeypatch.setenv(VARIABLE, str(path))
    where = r"^LIGHTNING_HOOKS_CONFIG: .*hooks\.yaml: callbacks\[1\]: ActivationCapture: modules: 'x' matches nothing"
    with pytest.raises(RuleError, match=where):
        make(tmp_path).fit(Line(), loader([3.0, 4.0]))
