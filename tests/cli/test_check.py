import json
import os
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from lightning_hooks.cli.main import main

MODEL = """
import torch
from lightning.pytorch import LightningModule
from torch.utils.data import DataLoader, TensorDataset


class Model(LightningModule):
    steps = 0

    def __init__(self, softmax: bool = False, bias: bool = False) -> None:
        super().__init__()
        layers = [torch.nn.Linear(4, 8, bias=bias), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 3)]
        self.net = torch.nn.Sequential(*layers, *[torch.nn.Softmax(1)] * softmax)

    def training_step(self, batch, batch_idx):
        Model.steps += 1
        return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)

    def train_dataloader(self):
        return DataLoader(TensorDataset(torch.randn(32, 4), torch.randint(3, (32,))), batch_size=16, shuffle=True)
"""
CONFIG = """
seed_everything: 1
trainer: {accelerator: cpu, max_epochs: 1, logger: false, enable_checkpointing: false, enable_progress_bar: false}
model:
  class_path: checked_model.Model
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    (tmp_path / "checked_model.py").write_text(MODEL)
    (tmp_path / "config.yaml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "checked_model", raising=False)
    yield ["--config", "config.yaml"]
    sys.modules.pop("checked_model", None)


def test_a_sound_config_passes_with_exit_code_0_and_is_not_trained(config, capsys):
    files = ["checked_model.py", "config.yaml"]
    assert main(["check", *config]) == 0
    said = capsys.readouterr().out
    assert "PASS  StepRuns" in said and said.endswith("\n21 passed, 2 skipped.\n")
    assert sorted(os.listdir()) in (files, ["__pycache__", *files])


def test_a_fault_ends_with_exit_code_1_and_names_the_module_and_what_to_try(config, capsys):
    assert main(["check", *config, "--model.softmax", "true"]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "FAIL ActivationBeforeLoss net.4: a softmax stands in front of `cross_entropy`, which applies it again ->" in said


def test_what_is_accepted_does_not_fail(config, capsys):
    assert main(["check", *config, "--model.softmax", "true", "--accept", "ActivationBeforeLoss/net.*"]) == 0
    assert "accepted: net.4: a softmax stands in front" in capsys.readouterr().out
    Path("accepted.txt").write_text("ActivationBeforeLoss/net.*\n")
    assert main(["check", *config, "--model.softmax", "true", "--accept-file", "accepted.txt"]) == 0


def test_json_has_the_fields_of_each_result(config, capsys):
    assert main(["check", *config, "--model.bias", "true", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    (bias,) = [each for each in report["results"] if each["check"] == "BiasBeforeNorm"]
    assert report["ok"] is True and bias["status"] == "warn"
    assert (bias["rows"], bias["fingerprint"], bias["measured"]) == (["net.0.bias"], "BiasBeforeNorm/net.0.bias", 1)


def test_junit_has_the_config_as_its_suite(config, capsys):
    assert main(["check", *config, "--junit"]) == 0
    (suite,) = ElementTree.fromstring(capsys.readouterr().out)
    assert (suite.get("name"), suite.get("tests"), suite.get("failures")) == ("config.yaml", str(len(suite)), "0")
    assert {each.tag for case in suite for each in case} <= {"skipped"}  # no check failed or warned


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["check"], "check needs --config FILE"),
        (
            ["check", "--config", "config.yaml", "--accept", "InputNotNormalized"],
            "there is no check 'InputNotNormalized' (did you mean 'InputNotNormalised'",
        ),
        (
            ["check", "--config", "config.yaml", "--time-limit", "-1"],
            "time_limit must be a number of seconds above 0, got -1.0",
        ),
    ],
)
def test_a_wrong_call_ends_with_exit_code_2(config, capsys, arguments, said):
    assert main(arguments) == 2
    assert said in capsys.readouterr().err


def test_help_names_the_options(capsys):
    assert main(["check", "--help"]) == 0
    assert "--accept CHECK/ROW" in capsys.readouterr().out
