"""`lightning.pytorch` and `pytorch_lightning`: both, either one, none, and one that is too old."""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from pathlib import Path
from typing import Any

import pytest

from lightning_hooks import ActivationCapture, CustomHooks, GradientTransforms, StatsMonitor, UnsupportedError
from lightning_hooks.callbacks import _lightning
from lightning_hooks.cli.main import main
from tests import forked

PACKAGES = [
    name
    for name, module in (("lightning.pytorch", "lightning"), ("pytorch_lightning",) * 2)
    if importlib.util.find_spec(module)
]
FIT = """
import sys
sys.modules[{absent!r}] = None
import torch
from {package} import LightningModule, Trainer
from lightning_hooks import StatsMonitor, Watch
from lightning_hooks.callbacks import _lightning
from lightning_hooks.cli.main import main

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1, bias=False)

    def training_step(self, batch, batch_idx):
        return self.layer(batch).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1.0)

if __name__ == "__main__":
    monitor = StatsMonitor([Watch(params="*", tensors="grad", stats="norm")])
    quiet = dict(enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False)
    trainer = Trainer(max_epochs=1, accelerator="cpu", devices=1, logger=False, callbacks=monitor, **quiet)
    trainer.fit(Model(), torch.utils.data.DataLoader([torch.tensor([[3.0, 4.0]])], batch_size=None))
    print("NORM", monitor.latest["grad_norm/layer.weight"])
    print("FOUND", *_lightning.imported())
    print("RC", main(["match", "--config", "config.yaml"]))
"""
CONFIG = """
seed_everything: false
trainer: {callbacks: [{class_path: StatsMonitor}], logger: false, accelerator: cpu}
model: %s.Model
"""


@pytest.mark.parametrize("package", PACKAGES)
def test_a_callback_is_one_of_each_imported_package(package: str) -> None:
    module = importlib.import_module(package)
    StatsMonitor()  # made after the import
    for kind in (StatsMonitor, GradientTransforms, CustomHooks, ActivationCapture):
        assert issubclass(kind, module.Callback)
    monitor = StatsMonitor()
    trainer = module.Trainer(callbacks=monitor, logger=False, accelerator="cpu", enable_checkpointing=False)
    assert monitor in trainer.callbacks


def test_one_package_is_enough(tmp_path: Path) -> None:
    package = PACKAGES[-1]
    absent = "pytorch_lightning" if package == "lightning.pytorch" else "lightning"
    (tmp_path / "train.py").write_text(FIT.format(absent=absent, package=package))
    (tmp_path / "config.yaml").write_text(CONFIG % "train")
    done = forked.run(["train.py"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {"NORM 5.0", f"FOUND {package}", "RC 0"} <= set(done.stdout.splitlines()), done.stdout


@pytest.mark.skipif(len(PACKAGES) < 2, reason="with one package there is no choice")
@pytest.mark.parametrize("package", PACKAGES)
def test_the_command_line_is_that_of_the_model(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"model_of_{package.replace('.', '_')}"
    code = FIT.format(absent="no_such_module", package=package)
    (tmp_path / f"{name}.py").write_text(code)
    (tmp_path / "config.yaml").write_text(CONFIG % name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert main(["match", "--config", "config.yaml"]) == 0


ORDERS = {
    "Lightning first": "from {package} import LightningModule, Trainer\nfrom lightning_hooks import StatsMonitor, Watch\n",
    "Lightning last": "from lightning_hooks import StatsMonitor, Watch\nfrom {package} import LightningModule, Trainer\n",
}
ALONE = """
import logging, sys, warnings
from {package}.callbacks import Callback
from lightning_utilities.core import rank_zero

def state():
    return rank_zero.log.name, rank_zero.rank_zero_deprecation.__module__, warnings.formatwarning

before = state()
assert issubclass(StatsMonitor, Callback)
{fit}
    assert isinstance(monitor, Callback)
    assert {other!r} not in sys.modules
    assert state() == before and before[0].startswith({package!r})
"""


@pytest.mark.skipif(len(PACKAGES) < 2, reason="with one package there is no other")
@pytest.mark.parametrize(("package", "order"), [(PACKAGES[0], "Lightning first"), (PACKAGES[-1], "Lightning last")])
def test_only_the_package_of_the_trainer_is_imported(package: str, order: str, tmp_path: Path) -> None:
    (other,) = set(PACKAGES) - {package}
    fit = FIT[FIT.index("class Model") :].partition('    print("FOUND"')[0]
    code = "import torch\n" + ORDERS[order].format(package=package) + ALONE.format(package=package, other=other, fit=fit)
    (tmp_path / "train.py").write_text(code)
    done = forked.run(["train.py"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "NORM 5.0" in done.stdout


@pytest.mark.skipif(len(PACKAGES) < 2, reason="with one package there is no other")
@pytest.mark.parametrize("package", PACKAGES[-1:])  # the other is that of every other command line
def test_a_command_line_knows_the_short_names_of_callbacks_that_were_imported_before_it(package: str, tmp_path: Path) -> None:
    code = (
        "import sys\nfrom lightning_hooks import StatsMonitor\n"
        f"from {package}.cli import LightningCLI\nfrom {package}.demos.boring_classes import BoringModel\n"
        "cli = LightningCLI(BoringModel, run=False, args=['--trainer.callbacks=StatsMonitor', '--trainer.logger=false'])\n"
        "print(any(isinstance(each, StatsMonitor) for each in cli.trainer.callbacks))\n"
        f"print(*({set(PACKAGES)} & set(sys.modules)))\n"
    )
    done = forked.run(["-c", code], cwd=tmp_path)
    assert done.stdout.splitlines()[-2:] == ["True", package], done.stderr


@pytest.mark.parametrize("package", PACKAGES)
def test_a_callback_that_is_made_before_a_lightning_is_imported_is_one_of_each_that_is(package: str) -> None:
    code = (
        "import importlib, sys\nfrom lightning_hooks import StatsMonitor\n"
        f"names = {sorted(PACKAGES, key=package.__ne__)}\nmonitor = StatsMonitor()\n"
        "assert not set(names) & set(sys.modules)\n"
        "quiet = dict(logger=False, accelerator='cpu', enable_checkpointing=False)\n"
        "for name in names:\n"
        "    lightning = importlib.import_module(name)\n"
        "    assert monitor in lightning.Trainer(callbacks=monitor, **quiet).callbacks\n"
        "    is_overridden = importlib.import_module(f'{name}.utilities.model_helpers').is_overridden\n"
        "    assert is_overridden('on_fit_start', monitor) and not is_overridden('on_sanity_check_start', monitor)\n"
    )
    done = forked.run(["-c", code])
    assert done.returncode == 0, done.stderr


PLAIN_LOOP = """
import sys
for name in ("lightning", "pytorch_lightning", "lightning_fabric"):
    sys.modules[name] = None
import torch
from lightning_hooks import FlightRecorder, HealthMonitor, StatsMonitor, instrument

model = torch.nn.Sequential(torch.nn.Linear(2, 1, bias=False))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
monitor, health, recorder = StatsMonitor(), HealthMonitor(), FlightRecorder()
with instrument(model, [monitor, health, recorder], optimizer=optimizer):
    model(torch.tensor([[3.0, 4.0]])).sum().backward()
    optimizer.step()
print("NORM", monitor.latest["grad_norm/0.weight"], health.findings, recorder.record)
"""


def test_a_plain_loop_needs_none() -> None:
    done = forked.run(["-c", PLAIN_LOOP])
    assert done.returncode == 0, done.stderr
    assert done.stdout == "NORM 5.0 [] None\n"
    first, last = done.stderr.splitlines()
    assert first == "StatsMonitor watches 1 module and 1 parameter" and last.startswith("No problem found in ")


def test_without_either_the_import_names_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"neither lightning nor pytorch_lightning is installed; pip install .*\[lightning\]"):
        _lightning.usable()


@pytest.mark.skipif("lightning.pytorch" not in PACKAGES, reason="only pytorch_lightning is installed")
def test_a_version_below_2_is_told_so(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    versions = {"lightning": "2.6.1", "pytorch-lightning": "1.9.5"}
    monkeypatch.setattr(importlib.metadata, "version", versions.__getitem__)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: True)
    with caplog.at_level("INFO", "lightning_hooks"):
        assert _lightning.usable() == ["lightning.pytorch"]
    assert (
        "works with lightning.pytorch only: lightning_hooks needs Lightning 2.5 or newer, and pytorch_lightning is 1.9.5"
        in (caplog.text)
    )

    class OldTrainer:
        pass

    OldTrainer.__module__ = "pytorch_lightning.trainer.trainer"
    trainer: Any = OldTrainer()
    with pytest.raises(UnsupportedError, match="pytorch_lightning is 1.9.5"):
        StatsMonitor().setup(trainer, None, "fit")  # type: ignore[arg-type]
    versions["lightning"] = "1.9.5"
    with pytest.raises(ImportError, match="lightning.pytorch is 1.9.5.*pytorch_lightning is 1.9.5"):
        _lightning.usable()
