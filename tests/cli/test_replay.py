"""`lightning-hooks replay`: a record that is written by hand in the format runs again, and names the operation."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from torch import nn
from torch.utils.data import DataLoader

from lightning_hooks import FlightRecorder
from lightning_hooks.cli.main import main
from lightning_hooks.engine.recording.saving import save_batch, save_generators, save_optimizers, save_weights
from lightning_hooks.recorder.files import RECORD, read_record, to_json
from lightning_hooks.recorder.record import FlightRecord, Verdict
from lightning_hooks.rules.importing import import_object

MODULES = """
import torch
from lightning.pytorch import LightningModule
from torch import nn


class Net(LightningModule):
    def __init__(self, width: int = 4, fault: str = "", rate: float = 0.1) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.encoder, self.head = nn.Linear(3, width), nn.Linear(width, 2)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        hidden = self.encoder(x)
        if self.hparams.fault == "forward":
            hidden = hidden - hidden
            return self.head(hidden.log())
        if self.hparams.fault == "backward":
            return self.head((hidden * 0).sqrt())
        if self.hparams.fault == "random":
            return self.head(1 / (self.drop(torch.ones(2, 4)) * hidden))
        if self.hparams.fault == "index" and (self.current_epoch, self.global_step) == (2, 17):
            return self.head(hidden / 0)
        return self.head(hidden)

    def training_step(self, batch, batch_idx):
        loss = self(batch["x"]).float().square().mean()
        self.log("loss", loss)
        if self.hparams.fault == "index" and batch_idx != 7:
            return loss.detach() * self.head.weight.sum() * 0
        if self.hparams.fault == "raises":
            raise ValueError("the target has a class 7")
        return loss

    def on_after_batch_transfer(self, batch, dataloader_idx):
        return {"x": batch["x"] + 100}

    def train_dataloader(self):
        raise RuntimeError("there is no data here")

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.rate)


class Late(Net):
    def forward(self, x):
        return super().forward(x) if self.global_step >= 5 else self.head(self.drop(self.encoder(x)))


class Manual(Net):
    def __init__(self, **options) -> None:
        super().__init__(**options)
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(self(batch["x"]).square().mean())
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "replayed_modules.py").write_text(MODULES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "replayed_modules", raising=False)


def written(
    folder: Path,
    fault: str = "",
    *,
    kind: str = "Net",
    weights: bool = True,
    change: Callable[[Any, Any, Any], None] | None = None,
    **context: Any,
) -> Path:
    """A record of a step of a module, in the state in which the step began."""
    torch.manual_seed(0)
    hyperparameters = {"width": 4, "fault": fault, "rate": 0.1}
    model: Any = import_object(f"replayed_modules.{kind}", "module")(**hyperparameters)
    batch = {"x": torch.randn(2, 3)}
    optimizer = model.configure_optimizers()
    model(batch["x"].clone()).sum().backward() if fault not in ("forward", "backward", "random", "index") else None
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter) if parameter.grad is None else parameter.grad
    optimizer.step()
    if change is not None:
        change(model, optimizer, batch)
    record_folder = folder / "flight_record"
    record_folder.mkdir()
    files = {"batch": save_batch(batch, record_folder).file, "generators": save_generators(record_folder).file}
    if weights:
        files["weights"] = save_weights(model, record_folder).file
        files["optimizers"] = save_optimizers([optimizer], record_folder).file
    known = {"module": f"replayed_modules.{kind}", "hyperparameters": hyperparameters, "precision": "32-true", "device": "cpu"}
    record = FlightRecord(Verdict.FORWARD, 17, message="Something went wrong.", context={**known, **context}, files=files)
    (record_folder / RECORD).write_text(to_json(record))
    return record_folder


def replayed(folder: Path, capsys: pytest.CaptureFixture[str], *options: str, code: int = 0) -> list[str]:
    capsys.readouterr()
    if not {"--module", "--config"} & {*options}:
        options = ("--module", read_record(folder).context["module"], *options)
    assert main(["replay", str(folder), *options]) == code
    return capsys.readouterr().out.splitlines()


def test_an_operation_of_the_forward_pass_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = replayed(written(tmp_path, "forward"), capsys)
    assert lines[0] == "forward: aten.log in the model itself (Net), call 1"
    assert lines[1] == "  replayed_modules.py:18 in forward: return self.head(hidden.log())"
    assert lines[2] == "  gave 2x4 float32: 8 -Inf (first at [0, 0])"
    assert lines[3] == "  read self: 2x4 float32, finite elements from 0 to 0"
    assert "The record says: forward. Something went wrong." in lines
    assert (
        "Replayed with the weights of the record (weights.json): not finite: loss; two runs gave the same, bit for bit."
        in lines
    )


def test_an_operation_of_the_backward_pass_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = replayed(written(tmp_path, "backward"), capsys)
    assert lines[0] == "backward: aten.div, backward of SqrtBackward0, in the model itself (Net), call 1"
    assert lines[1] == "  replayed_modules.py:20 in forward: return self.head((hidden * 0).sqrt())"
    assert any("not finite: grad of encoder." in line for line in lines)


def negative_variance(model: Any, optimizer: Any, batch: Any) -> None:
    optimizer.state[model.head.weight]["exp_avg_sq"].fill_(-1.0)


@pytest.mark.parametrize("kind", ["Net", "Manual"])
def test_an_update_is_named(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = replayed(written(tmp_path, kind=kind, change=negative_variance), capsys)
    assert lines[0] == "update: aten.sqrt in the update of head.weight"
    assert any("not finite: param of head.weight; two runs gave the same" in line for line in lines)


def nan_in_batch(model: Any, optimizer: Any, batch: Any) -> None:
    batch["x"][1, 2] = float("nan")


def nan_in_weight(model: Any, optimizer: Any, batch: Any) -> None:
    with torch.no_grad():
        model.encoder.bias[3] = float("nan")


def test_a_bad_batch_and_a_bad_weight_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "batch").mkdir(), (tmp_path / "weight").mkdir()
    lines = replayed(written(tmp_path / "batch", change=nan_in_batch), capsys)
    assert lines[0] == "batch: the batch was not finite when the step began"
    assert lines[1].startswith("  batch['x']: 2x3 float32, finite elements from")
    assert lines[1].endswith("1 NaN (first at [1, 2])")
    lines = replayed(written(tmp_path / "weight", change=nan_in_weight), capsys)
    assert lines[0] == "weights: encoder.bias was not finite when the step began"
    assert lines[1].startswith("  encoder.bias: 4 float32") and lines[1].endswith("1 NaN (first at [3])")


def test_generators_epoch_step_and_index_of_the_batch_are_those_of_the_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "random").mkdir(), (tmp_path / "index").mkdir()
    lines = replayed(written(tmp_path / "random", "random"), capsys)
    assert any("bit for bit" in line for line in lines) and "aten.reciprocal" in lines[0]
    folder = written(tmp_path / "index", "index", epoch=2, global_step=17, batch_idx=7)
    assert replayed(folder, capsys)[0].startswith("forward: aten.div in the model itself")


def test_clipping_and_the_scaler_are_those_of_the_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def large(model: Any, optimizer: Any, batch: Any) -> None:
        batch["x"].mul_(1e5)

    folder = written(tmp_path, change=large, precision="16-mixed", loss_scale=2.0, gradient_clip_val=1.0)
    lines = replayed(folder, capsys)
    # The batch is finite in float32, and beyond the largest float16.
    assert lines[0] == "forward: aten._to_copy in encoder (Linear), call 1"
    assert any(line.startswith("Note: float16 ends at 6.55e+04; the operands reach") for line in lines)


def test_a_scale_that_could_not_be_lowered_stays_the_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = written(tmp_path, "backward", precision="16-mixed", loss_scale=1.0)
    record = (folder / RECORD).read_text()
    (folder / RECORD).write_text(record.replace('"verdict": "forward"', '"verdict": "scaler"'))
    assert replayed(folder, capsys)[0].startswith("scaler: aten.div, backward of SqrtBackward0, in the model itself")


def test_a_step_that_is_fine_here_has_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = replayed(written(tmp_path), capsys, code=1)
    assert lines[0] == "not_reproduced: step 17 gives finite numbers here"
    assert any("all finite; two runs gave the same, bit for bit." in line for line in lines)


def test_an_exception_is_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = replayed(written(tmp_path, "raises"), capsys)
    assert lines[0] == "forward: ValueError: the target has a class 7"


def test_weights_come_from_a_checkpoint_if_the_record_has_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = written(tmp_path, weights=False)
    assert main(["replay", str(folder), "--module", "replayed_modules.Net"]) == 2
    assert "the record has no weights and the run had no checkpoint; give --checkpoint FILE" in capsys.readouterr().err
    assert main(["replay", str(folder), "--module", "replayed_modules.Net", "--checkpoint", "none.ckpt"]) == 2
    assert "none.ckpt: there is no such checkpoint" in capsys.readouterr().err
    model: Any = import_object("replayed_modules.Net", "module")()
    nan_in_weight(model, None, None)
    torch.save({"state_dict": model.state_dict(), "global_step": 12}, tmp_path / "last.ckpt")
    lines = replayed(folder, capsys, "--checkpoint", "last.ckpt")
    assert lines[0] == "weights: encoder.bias was not finite when the step began"
    assert any("checkpoint last.ckpt of step 12; the record is of step 17" in line for line in lines)


def test_the_module_is_that_of_an_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = written(tmp_path, module="__main__.Net")
    assert main(["replay", str(folder)]) == 2
    said = capsys.readouterr().err
    assert "the record names the module FILE_WITHOUT_PY.Net, but a record may come from a stranger" in said
    assert "name the module yourself, with the name of the script that was run for FILE_WITHOUT_PY (it must " in said
    assert said.endswith(f": lightning-hooks replay {folder} --module FILE_WITHOUT_PY.Net\n")
    lines = replayed(folder, capsys, "--module", "replayed_modules.Net", "fault=forward")
    assert lines[0].startswith("forward: aten.log in the model itself")
    assert main(["replay", str(folder), "--module", "replayed_modules.Net", "width=5"]) == 2
    assert "encoder.weight has the shape (4, 3) in weights.json and (5, 3) in the module" in capsys.readouterr().err


def test_a_module_that_cannot_be_built_names_the_option_that_helps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = written(tmp_path, module="torch.nn.Linear")
    assert main(["replay", str(folder), "--module", "torch.nn.Linear"]) == 2
    said = capsys.readouterr().err
    assert (
        "module: torch.nn.Linear() raises TypeError: " in said and "the values are the hyperparameters of the record: " in said
    )
    assert main(["replay", str(folder), "--module", "torch.nn.Linear", "in_features=1"]) == 2
    assert "give them as `--module torch.nn.Linear NAME=VALUE`, or give --config FILE" in capsys.readouterr().err


def test_the_module_is_that_of_a_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.yaml").write_text(
        "seed_everything: false\nmodel:\n  class_path: replayed_modules.Net\n  init_args:\n    fault: backward\n"
    )
    lines = replayed(written(tmp_path, module="gone.Net"), capsys, "--config", "config.yaml")
    assert lines[0].startswith("backward: aten.div, backward of SqrtBackward0")


def test_what_is_missing_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "flight_record").mkdir()
    assert main(["replay", "flight_record"]) == 2
    assert "there is no flight record" in capsys.readouterr().err
    record = FlightRecord(Verdict.FORWARD, 3, notes=("The batch is not kept: batch['x'] was changed in place.",))
    (tmp_path / "flight_record" / RECORD).write_text(to_json(record))
    assert main(["replay", "flight_record"]) == 2
    assert "cannot be replayed: The batch is not kept: batch['x'] was changed in place\n" in capsys.readouterr().err


def test_a_module_without_a_training_loop_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = written(tmp_path)
    assert main(["replay", str(folder), "--module", "torch.nn.Linear", "in_features=1", "out_features=1"]) == 2
    assert "replay needs a LightningModule, got <class 'torch.nn.modules.linear.Linear'>" in capsys.readouterr().err
    assert isinstance(nn.Linear(1, 1), nn.Module)


def test_an_update_is_replayed_with_parameters_that_are_finite_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def after_update(model: Any, optimizer: Any, batch: Any) -> None:
        negative_variance(model, optimizer, batch)
        optimizer.step()
        assert model.head.weight.isnan().all()

    folder = written(tmp_path, change=after_update)
    record = (folder / RECORD).read_text()
    (folder / RECORD).write_text(record.replace('"verdict": "forward"', '"verdict": "update"'))
    lines = replayed(folder, capsys)
    assert lines[0] == "update: aten.sqrt in the update of head.weight"
    assert any(
        "(weights.json) after the update, with 0 in place of what is not finite: not finite: param" in line for line in lines
    )


@pytest.mark.parametrize(
    ("fault", "first"),
    [
        ("forward", "forward: aten.log in the model itself (Late), call 1"),
        ("backward", "backward: aten.div, backward of SqrtBackward0, in the model itself (Late), call 1"),
        ("random", "forward: aten.reciprocal in the model itself (Late), call 1"),
    ],
)
def test_a_record_of_a_training_is_replayed(fault: str, first: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model: Any = import_object("replayed_modules.Late", "module")(fault=fault)
    recorder = FlightRecorder(weights=True, logdir=tmp_path)
    options: dict[str, Any] = {"accelerator": "cpu", "logger": False, "max_epochs": 2, "callbacks": [recorder]}
    quiet = {"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    torch.manual_seed(0)
    batches = DataLoader([{"x": torch.randn(2, 3)} for _ in range(4)], batch_size=None)
    Trainer(**options, **quiet, gradient_clip_val=1.0, gradient_clip_algorithm="value").fit(model, batches)
    record = recorder.record
    assert record is not None and recorder.folder is not None and record.step == 5
    assert record.context["gradient_clip_algorithm"] == "value"
    lines = replayed(recorder.folder, capsys)
    assert lines[0] == first
    assert f"The record says: {record.verdict.value}. {record.message}" in lines
    assert any("two runs gave the same, bit for bit" in line for line in lines)
    # The batch was transformed before it was recorded, and is not transformed once more.
    assert record.operation is not None and all(f"read {each.name}: " in "".join(lines) for each in record.operation.inputs)
