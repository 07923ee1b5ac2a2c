"""`StatsMonitor(stages=…)`: a run of validation, testing or predicting as one exactly merged row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lightning_hooks import RuleError, StatsMonitor, Watch, assert_no_hooks, read_run

RULES = [Watch(modules="layer", tensors=["input", "output", "output_grad"], stats=["mean", "std", "max"])]


class Twice(LightningModule):
    """What flows in is known by hand; one weight, which training leaves alone (lr 0)."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1, bias=False)
        nn.init.constant_(self.layer.weight, 2.0)

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return self.layer(batch).mean()

    def validation_step(self, batch: Tensor, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.log("val_loss", self.layer(batch).mean())

    test_step = validation_step

    def predict_step(self, batch: Tensor, batch_idx: int, dataloader_idx: int = 0) -> Tensor:
        return self.layer(batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.0)


def loader(*batches: list[float]) -> DataLoader[Any]:
    return DataLoader([torch.tensor(batch)[:, None] for batch in batches], batch_size=None)


def trainer(tmp_path: Path, monitor: StatsMonitor, **options: Any) -> Trainer:
    options = {"max_epochs": 1, "num_sanity_val_steps": 2, **options}
    return Trainer(
        default_root_dir=tmp_path,
        callbacks=[monitor],
        accelerator="cpu",
        logger=TensorBoardLogger(tmp_path, name="", version="run"),
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        log_every_n_steps=1,
        **options,
    )


TRAIN = loader([1.0, 3.0], [5.0, 7.0])
VALID = loader([10.0], [20.0, 60.0])  # batches of different sizes


def test_all_batches_of_a_validation_run_are_one_row(tmp_path: Path) -> None:
    monitor, model = StatsMonitor(RULES, stages=["train", "validate"]), Twice()
    trainer(tmp_path, monitor).fit(model, TRAIN, VALID)
    values = monitor.latest
    assert values["val_input_mean/layer"] == pytest.approx(30.0)  # of 10, 20 and 60, not of the means of the batches
    assert values["val_output_max/layer"] == 120.0
    assert values["val_input_std/layer"] == pytest.approx(torch.tensor([10.0, 20, 60]).double().std(correction=0).item())
    assert values["input_mean/layer"] == pytest.approx(6.0)  # the last batch of training
    assert not any(tag.startswith("val_output_grad") for tag in values)
    assert_no_hooks(model)


def test_each_run_is_an_event_at_the_step_of_self_log_and_the_sanity_check_is_none(tmp_path: Path) -> None:
    monitor = StatsMonitor(RULES, stages=["train", "validate"])
    trainer(tmp_path, monitor, max_epochs=3, val_check_interval=1).fit(Twice(), TRAIN, VALID)
    run = read_run(tmp_path / "run")
    steps, values = run.scalars["watch/val_input_mean/layer"]
    assert list(steps) == list(run.scalars["val_loss"][0]) == [0, 1, 2, 3, 4, 5]
    assert list(values) == [30.0] * 6  # float32 in the event
    assert list(run.scalars["watch/input_mean/layer"][1]) == [2.0, 6.0] * 3


def test_validation_inside_an_accumulation_window_leaves_the_window_alone(tmp_path: Path) -> None:
    monitor = StatsMonitor(RULES, stages=["train", "validate"])
    trainer(tmp_path, monitor, accumulate_grad_batches=2, val_check_interval=1).fit(Twice(), TRAIN, VALID)
    assert monitor.latest["input_mean/layer"] == pytest.approx(4.0)  # of all four numbers of the window
    assert monitor.latest["val_input_mean/layer"] == pytest.approx(30.0)


def test_validation_alone(tmp_path: Path) -> None:
    monitor, model = StatsMonitor(RULES, stages="validate"), Twice()
    trainer(tmp_path, monitor).fit(model, TRAIN, VALID)
    assert set(monitor.latest) == {
        f"val_{tensor}_{stat}/layer" for tensor in ("input", "output") for stat in ("mean", "std", "max")
    } | {"val_run/nonfinite"}
    assert_no_hooks(model)


@pytest.mark.parametrize(("stage", "prefix"), [("validate", "val_"), ("test", "test_"), ("predict", "predict_")])
def test_a_run_outside_a_fit(tmp_path: Path, stage: str, prefix: str) -> None:
    monitor, model = StatsMonitor(RULES, stages=["train", stage], prefix="a/"), Twice()
    getattr(trainer(tmp_path, monitor), stage)(model, VALID)
    assert monitor.latest[f"{prefix}input_mean/layer"] == pytest.approx(30.0)
    assert f"a/{prefix}input_mean/layer" in read_run(tmp_path / "run").scalars
    assert_no_hooks(model)


def test_a_stage_that_is_not_named_is_not_watched(tmp_path: Path) -> None:
    monitor, model = StatsMonitor(RULES), Twice()
    trainer(tmp_path, monitor).test(model, VALID)
    assert monitor.latest == {}


def test_several_loaders_are_merged(tmp_path: Path) -> None:
    monitor = StatsMonitor(RULES, stages="validate")
    trainer(tmp_path, monitor).validate(Twice(), [VALID, loader([0.0, 10.0])])
    assert monitor.latest["val_input_mean/layer"] == pytest.approx(20.0)


def test_groups_and_histograms_there_too(tmp_path: Path) -> None:
    rule = Watch(modules="layer", tensors="output", stats=["max", "p50", "histogram"], group_by={"all": "*"})
    monitor = StatsMonitor([rule], stages=["train", "validate"])
    trainer(tmp_path, monitor).fit(Twice(), TRAIN, VALID)
    assert monitor.latest["val_output_max/all"] == 120.0
    assert 20.0 <= monitor.latest["val_output_p50/all"] <= 60.0


@pytest.mark.parametrize("max_scalars", [10_000, 1])
def test_the_text_says_how_much_is_watched_there(tmp_path: Path, max_scalars: int) -> None:
    rules = [
        Watch(params="*", tensors="grad", stats="norm"),
        Watch(modules="layer", tensors=["output", "output_grad"], stats=["max", "std"]),
        Watch(modules="layer", tensors="input", stats="max", group_by={"all": "*"}),
    ]
    monitor = StatsMonitor(rules, stages="validate", max_scalars=max_scalars)
    if max_scalars > 1:
        trainer(tmp_path, monitor).validate(Twice(), VALID)
    else:
        with pytest.warns(UserWarning, match="max_scalars"):
            trainer(tmp_path, monitor).validate(Twice(), VALID)
    (page,) = read_run(tmp_path / "run").texts.values()
    assert "- watched: 1 module at every step" in page
    rows = [line.split()[0] for line in str(monitor.match(Twice())).splitlines() if line.startswith("watch[")]
    assert rows == ["watch[1]", "watch[2]", "watch[2]"]
    tags = {tag for tag in read_run(tmp_path / "run").scalars if tag.startswith(("watch/val_input_", "watch/val_output_"))}
    expected = ["input_max/all", "output_max/layer", "output_std/layer"] if max_scalars > 1 else ["input_max/all"]
    assert tags == {f"watch/val_{tag}" for tag in expected}


def test_a_validation_run_that_fails_leaves_no_hook(tmp_path: Path) -> None:
    class Failing(Twice):
        def validation_step(self, batch: Tensor, batch_idx: int, dataloader_idx: int = 0) -> None:
            self.layer(batch)
            raise ZeroDivisionError("in validation")

    model = Failing()
    with pytest.raises(ZeroDivisionError, match="in validation"):
        trainer(tmp_path, StatsMonitor(RULES, stages=["train", "validate"]), num_sanity_val_steps=0).fit(model, TRAIN, VALID)
    assert_no_hooks(model)


def test_a_monitor_of_parameters_has_nothing_to_see_there() -> None:
    with pytest.raises(
        RuleError, match=r"^stages: no rule watches 'input' or 'output' of modules, and 'validate' has no gradients$"
    ):
        StatsMonitor([Watch(params="*")], stages=["train", "validate"])


def test_an_unknown_stage_is_named() -> None:
    with pytest.raises(RuleError, match=r"^stages.*'valdate'.*'validate'"):
        StatsMonitor(stages=["valdate"])
    for wrong in (3, {"train": 1}):  # no misspelled name
        with pytest.raises(RuleError, match=rf"^stages\[1\] must be one of .* got {wrong}$"):
            StatsMonitor(stages=["train", wrong])  # type: ignore[list-item]


def test_weights_are_bit_identical_with_and_without(tmp_path: Path) -> None:
    from tests.callbacks.models import ValNet, data

    def fit(stages: tuple[str, ...]) -> list[Tensor]:
        torch.manual_seed(0)
        model = ValNet()
        trainer(tmp_path, StatsMonitor(stages=stages), max_epochs=2).fit(model, data(), data())
        return [p.detach().clone() for p in model.parameters()]

    for plain, watched in zip(fit(("train",)), fit(("train", "validate")), strict=True):
        assert torch.equal(plain, watched)
