"""`replay --twice` and `diff` of two flight records name the first operator that gives other bits, in one paragraph."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_hooks.cli.main import main
from lightning_hooks.engine.recording.saving import save_batch, save_generators, save_weights
from lightning_hooks.recorder.files import RECORD, to_json
from lightning_hooks.recorder.record import FlightRecord, Verdict
from lightning_hooks.rules.importing import import_object

MODULES = """
import torch
from lightning.pytorch import LightningModule
from torch import nn

CALLS = []


class Net(LightningModule):
    def __init__(self, eps=1e-5):
        super().__init__()
        self.encoder, self.drop = nn.Linear(3, 4), nn.Dropout(0.5)
        self.norm, self.head = nn.LayerNorm(4, eps), nn.Linear(4, 2)

    def training_step(self, batch, batch_idx):
        return self.head(self.norm(self.drop(self.encoder(batch["x"])))).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


class Port(Net):
    def __init__(self):
        super().__init__(eps=1e-6)


class Counting(Net):
    def training_step(self, batch, batch_idx):
        CALLS.append(0)
        return super().training_step({"x": batch["x"] * len(CALLS)}, batch_idx)
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "compared_modules.py").write_text(MODULES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "compared_modules", raising=False)


def written(folder: Path, kind: str = "Net", generators: bool = True, seed: int = 0) -> Path:
    """A record of the first step of a module."""
    torch.manual_seed(0)
    model: Any = import_object(f"compared_modules.{kind}", "module")()
    batch = {"x": torch.randn(2, 3)}
    folder.mkdir()
    files = {"batch": save_batch(batch, folder).file, "weights": save_weights(model, folder).file}
    if generators:
        torch.manual_seed(seed)
        files["generators"] = save_generators(folder).file
    context = {"module": f"compared_modules.{kind}", "hyperparameters": {}, "precision": "32-true", "device": "cpu"}
    record = FlightRecord(Verdict.FORWARD, 17, message="Something went wrong.", context=context, files=files)
    (folder / RECORD).write_text(to_json(record))
    return folder


def told(capsys: pytest.CaptureFixture[str], *arguments: str, code: int) -> str:
    capsys.readouterr()
    assert main([*arguments]) == code
    return capsys.readouterr().out


def test_a_step_that_is_the_same_twice_is_equal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = told(capsys, "replay", str(written(tmp_path / "a")), "--twice", "--module", "compared_modules.Net", code=0)
    assert out.startswith("Two runs of the step are equal to the last bit, in all ") and out.count("\n") == 1


def test_the_first_operator_of_a_step_that_differs_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = written(tmp_path / "a", "Counting")
    out = told(capsys, "replay", str(folder), "--twice", "--module", "compared_modules.Counting", code=1)
    assert out.startswith("Operator 1, aten.mul in code outside all modules, at compared_modules.py:30 in training_step: ")
    assert "was called with other=1 in the first run and with other=2 in the second." in out
    out = told(capsys, "replay", str(folder), "--module", "compared_modules.Counting", code=1)
    assert "two runs differ: the step is not deterministic" in out
    assert "Operator 1, aten.mul in code outside all modules" in out


def test_two_records_with_other_random_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = written(tmp_path / "a"), written(tmp_path / "b", seed=1)
    out = told(capsys, "diff", str(a), str(b), "--module", "compared_modules.Net", code=1)
    assert out.startswith("The first operator is equal to the last bit. Operator 2, aten.bernoulli_ in drop (Dropout), call 1")
    assert "It draws random numbers" in out
    assert told(capsys, "diff", str(a), str(a), "--module", "compared_modules.Net", code=0).startswith("Two runs")


def test_a_port_is_compared_by_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = written(tmp_path / "a"), written(tmp_path / "b", "Port")
    modules = ["--module", "compared_modules.Net", "--module", "compared_modules.Port"]
    out = told(capsys, "diff", str(a), str(b), *modules, code=1)
    assert "aten.native_layer_norm in norm (LayerNorm), call 1" in out
    assert "was called with eps=1e-05 in the first run and with eps=1e-06 in the second." in out


def test_what_a_record_lacks_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = written(tmp_path / "a", generators=False), written(tmp_path / "b")
    out = told(capsys, "diff", str(a), str(b), "--module", "compared_modules.Net", code=1)
    assert "Note: the states of the generators were not kept: random numbers differ" in out
    assert main(["diff", str(a), str(b)]) == 2
    assert "name the module yourself" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["diff", str(a), str(b), "--json", "--module", "compared_modules.Net"])
