"""The record of a stranger: `lightning-hooks replay` imports and calls only what the user names."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lightning_hooks.cli.given import container_classes, module_classes
from lightning_hooks.cli.main import main
from lightning_hooks.engine.recording.saving import save_batch, save_weights
from lightning_hooks.errors import RuleError
from lightning_hooks.recorder.files import RECORD, to_json
from lightning_hooks.recorder.record import FlightRecord, Verdict
from lightning_hooks.rules.importing import import_object

MODEL = """
import torch
from collections import Counter
from lightning.pytorch import LightningModule
from torch import nn
from own_data import Sample

class Net(LightningModule):
    def __init__(self, layer: nn.Module | None = None) -> None:
        super().__init__()
        self.layer = layer or nn.Linear(2, 1)

    def training_step(self, batch, batch_idx):
        x = batch.x if hasattr(batch, "x") else batch["x"]
        return self.layer(x).sum() * batch.factor() if hasattr(batch, "factor") else self.layer(x).sum() / 0

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
"""
DATA = """
from dataclasses import dataclass
from torch import Tensor

@dataclass
class Sample:
    x: Tensor

    def factor(self):
        return float("inf")

class Batch(dict):
    def factor(self):
        return float("nan")
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "own_model.py").write_text(MODEL)
    (tmp_path / "own_data.py").write_text(DATA)
    (tmp_path / "evil.py").write_text("from pathlib import Path\nPath('ran').touch()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for name in ("own_model", "own_data", "evil"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def written(batch: Any, files: dict[str, Any] | None = None, **context: Any) -> str:
    Path("flight_record").mkdir(exist_ok=True)
    save_batch(batch, Path("flight_record"))
    model = nn.Module()
    model.layer = nn.Linear(2, 1)
    saved = {"batch": "batch.json", "weights": save_weights(model, Path("flight_record")).file, **(files or {})}
    record = FlightRecord(Verdict.FORWARD, 3, context={"module": "own_model.Net", **context}, files=saved)
    Path("flight_record", RECORD).write_text(to_json(record))
    return "flight_record"


def told(capsys: pytest.CaptureFixture[str], *options: str, code: int) -> str:
    capsys.readouterr()
    assert main(["replay", "flight_record", *options]) == code
    said = capsys.readouterr()
    assert not Path("ran").exists() and "evil" not in sys.modules
    return said.out if code < 2 else said.err


def test_a_module_is_not_imported_because_a_record_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    written({"x": torch.ones(1, 2)}, module="evil.Net")
    said = told(capsys, code=2)
    assert said == (
        "lightning-hooks: error: the record names the module evil.Net, but a record may come from a stranger, so it imports "
        "nothing; name the module yourself: lightning-hooks replay flight_record --module evil.Net\n"
    )
    written({"x": torch.ones(1, 2)}, module="os.system('x')")
    assert "the record does not name the module; give --module package.Module" in told(capsys, code=2)


def test_hyperparameters_name_modules_of_the_users_code_alone(capsys: pytest.CaptureFixture[str]) -> None:
    layer = {"class_path": "torch.nn.Linear", "init_args": {"in_features": 2, "out_features": 1}}
    written({"x": torch.ones(1, 2)}, hyperparameters={"layer": layer})
    assert told(capsys, "--module", "own_model.Net", code=0).startswith("forward: aten.div in code")
    for path in ("evil.Net", "os.system", "shelve.Shelf", "own_data.Sample"):
        written({"x": torch.ones(1, 2)}, hyperparameters={"layer": {"class_path": path, "init_args": {}}})
        said = told(capsys, "--module", "own_model.Net", code=2)
        assert f"the record names {path}, which is not a class of modules that the code of the module imports" in said
    said = told(capsys, "--module", "os.system", code=2)
    assert "os.system is not a class of modules, and is not called with values of a record" in said


def test_a_batch_has_the_classes_that_the_code_of_the_module_imports(capsys: pytest.CaptureFixture[str]) -> None:
    written(import_object("own_data.Sample", "")(torch.ones(1, 2)))
    said = told(capsys, "--module", "own_model.Net", code=0)
    assert said.startswith("forward: aten.mul in code") and "plain values" not in said


def test_a_class_that_the_module_does_not_import_is_named_by_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    written(import_object("own_data.Batch", "")(x=torch.ones(1, 2)))
    advice = "plain values stand for them; name them with --class own_data.Batch"
    said = told(capsys, "--module", "own_model.Net", code=0)
    assert said.startswith("forward: aten.div in") and f"does not import the classes own_data.Batch, so {advice}" in said
    said = told(capsys, "--module", "own_model.Net", "--class", "own_data.Batch", code=0)
    assert said.startswith("forward: aten.mul in") and "plain values" not in said
    written({"y": import_object("own_data.Batch", "")(x=torch.ones(1, 2))})
    said = told(capsys, "--module", "own_model.Net", code=2)
    assert "the step ends with KeyError: 'x'" in said and advice in said
    assert "--class: own_model.Net must be the class of a batch, not of a function or a module" in told(
        capsys, "--module", "own_model.Net", "--class", "own_model.Net", code=2
    )


def test_a_checkpoint_is_read_only_if_the_user_names_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    written({"x": torch.ones(1, 2)}, checkpoint="/etc/last.ckpt")
    record = json.loads(Path("flight_record", RECORD).read_text())
    del record["files"]["weights"]
    Path("flight_record", RECORD).write_text(json.dumps(record))
    said = told(capsys, "--module", "own_model.Net", code=2)
    assert "the last checkpoint of the run was /etc/last.ckpt; give --checkpoint /etc/last.ckpt" in said
    assert "--module own_model.Net --checkpoint /etc/last.ckpt" in told(capsys, code=2)


@pytest.mark.parametrize("part", ["batch", "weights", "generators", "optimizers"])
def test_no_file_outside_the_folder_is_read(part: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    save_batch([torch.ones(1)], tmp_path)
    (tmp_path / "flight_record").mkdir()
    (tmp_path / "flight_record" / "linked.json").symlink_to(tmp_path / "batch.json")
    for file in ("../batch.json", str(tmp_path / "batch.json"), "linked.json"):
        written({"x": torch.ones(1, 2)}, {part: file})
        assert "leads out of the folder flight_record and is not read" in told(capsys, "--module", "own_model.Net", code=2)


def test_an_exception_of_the_record_is_replayed_though_a_class_is_not_named(capsys: pytest.CaptureFixture[str]) -> None:
    written({"y": import_object("own_data.Batch", "")(x=torch.ones(1, 2))})
    values = json.loads(Path("flight_record", RECORD).read_text())
    failure = {"type": "KeyError", "message": "'x'"}
    Path("flight_record", RECORD).write_text(json.dumps({**values, "verdict": "exception", "failure": failure}))
    said = told(capsys, "--module", "own_model.Net", code=0)
    assert said.startswith("exception: KeyError: 'x'") and "--class own_data.Batch" in said


def test_a_record_that_is_a_link_out_of_its_folder_is_not_read(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    written({"x": torch.ones(1, 2)})
    Path("flight_record", RECORD).rename("outside.json")
    Path("flight_record", RECORD).symlink_to(tmp_path / "outside.json")
    assert "'record.json' leads out of the folder flight_record and is not read" in told(capsys, code=2)


def test_the_given_classes_are_those_of_the_users_code() -> None:
    net = import_object("own_model.Net", "")
    sample, batch = import_object("own_data.Sample", ""), import_object("own_data.Batch", "")
    given = container_classes([net])
    assert given == {"own_data.Sample": sample, "own_model.Sample": sample}
    assert container_classes([net], ["own_data.Batch"])["own_data.Batch"] is batch
    assert container_classes([batch])["__main__.Batch"] is batch
    modules = module_classes([net])
    assert modules["own_model.Net"] is modules["__main__.Net"] is net and modules["torch.nn.Linear"] is nn.Linear
    with pytest.raises(RuleError, match="there is no module 'nowhere'"):
        container_classes([net], ["nowhere.Batch"])
