"""`HealthMonitor(reference=…)` in a fit: it changes nothing, reads a StatsMonitor beside it, and notes what is compared."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, Trainer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from galleries.reference.models import Pictures, pictures
from lightning_hooks import HealthMonitor, StatsMonitor
from lightning_hooks.errors import RuleError
from lightning_hooks.health.reference.baseline import write_baseline
from lightning_hooks.health.reference.learning import learn
from lightning_hooks.tensorboard.reading import read_run


class Thawed(Pictures):
    """Trains the layer that was frozen."""

    def freeze(self) -> None:
        pass


class Plateau(Pictures):
    """Lowers its rate by the loss of validation."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": ReduceLROnPlateau(optimizer), "monitor": "val_loss"}}


def fit(kind: type[Pictures], seed: int, *callbacks: Callback, steps: int = 14) -> Pictures:
    torch.manual_seed(seed)
    module = kind()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options: dict[str, Any] = {"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
        trainer = Trainer(max_steps=steps, logger=False, accelerator="cpu", callbacks=[*callbacks], **options)
        trainer.fit(module, *pictures(seed))
    return module


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a good run."""
    folder = tmp_path_factory.mktemp("good")
    fit(Pictures, 0, HealthMonitor(logdir=folder))
    return folder / "run_0"


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Findings of a fit without a logger are written to the current folder."""
    monkeypatch.chdir(tmp_path)


def test_a_reference_changes_no_weight(good: Path) -> None:
    bare, watched = fit(Pictures, 1), fit(Pictures, 1, monitor := HealthMonitor(reference=good))
    assert all(map(torch.equal, bare.state_dict().values(), watched.state_dict().values()))
    assert not any(module._forward_hooks or module._backward_hooks for module in watched.modules())
    assert monitor.findings == [] and "ReferenceNumbers" in monitor.summary["ran"]


def test_beside_a_stats_monitor_the_rules_read_its_steps(good: Path) -> None:
    monitor = HealthMonitor(reference=good)
    fit(Thawed, 1, StatsMonitor(loggers=[]), monitor)
    found = {finding.rule: finding for finding in monitor.findings if finding.rule.startswith("Reference")}
    assert found.keys() == {"ReferenceTrained", "ReferenceFlow"}
    assert found["ReferenceTrained"].rows == ("features.0.bias", "features.0.weight")
    assert not {"ReferenceData", "ReferenceNumbers"} & monitor.summary["could_not_run"].keys()


def test_facts_have_the_modes_of_validation_and_whether_a_rate_follows_a_metric(tmp_path: Path) -> None:
    for name, kind, follows in (("pictures", Pictures, False), ("plateau", Plateau, True)):
        fit(kind, 0, HealthMonitor(logdir=tmp_path / name))
        facts = {view.step: view.facts for view in read_run(tmp_path / name / "run_0").views(prefix="health/")}
        first, last = facts[9], facts[11]
        assert first is not None and last is not None
        assert (first.validating, last.validating) == (None, ())
        assert first.follows_metric is follows


def test_a_baseline_is_taken_too_and_its_rules_can_be_changed_and_accepted(good: Path, tmp_path: Path) -> None:
    write_baseline(learn([("good", read_run(good).views(prefix="health/"))]), tmp_path / "baseline.json")
    monitor = HealthMonitor(
        reference=tmp_path / "baseline.json", rules={"ReferenceFlow": False}, accept="ReferenceTrained/features.0.*"
    )
    fit(Thawed, 1, monitor)
    assert [finding.rule for finding in monitor.findings if finding.rule.startswith("Reference")] == []
    assert monitor.summary["accepted"] == ["ReferenceTrained/features.0.bias", "ReferenceTrained/features.0.weight"]


def test_bad_references_are_refused_when_the_monitor_is_made(tmp_path: Path) -> None:
    with pytest.raises(RuleError, match="reference: there is no run .*nowhere"):
        HealthMonitor(reference=tmp_path / "nowhere")
    with pytest.raises(RuleError, match="reference: no event file in"):
        HealthMonitor(reference=str(tmp_path))
    with pytest.raises(RuleError, match="reference must be the folder of a good run"):
        HealthMonitor(reference=3)  # type: ignore[arg-type]
