"""`lightning-hooks baseline` and `compare`: what they print and write, their exit codes, and bad input."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from lightning.pytorch import Trainer

from galleries.health.faulty_parts import Perceptron, digits, loader, sgd
from lightning_hooks import HealthMonitor
from lightning_hooks.cli.main import main


def train(folder: Path, seed: int, rate: float = 0.1) -> Path:
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = Trainer(
            max_steps=15,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            accelerator="cpu",
            callbacks=[HealthMonitor(logdir=folder)],
        )
        trainer.fit(Perceptron(sgd(rate), width=16, depth=1), loader(*digits(), seed=seed))
    return folder / "run_0"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folders of two good runs and of one whose learning rate is another."""
    folder = tmp_path_factory.mktemp("runs")
    return {
        "good": train(folder / "good", 0),
        "other": train(folder / "other", 1),
        "changed": train(folder / "changed", 2, rate=0.05),
    }


def call(capsys: pytest.CaptureFixture[str], *arguments: Any) -> tuple[int, str, str]:
    code = main([*map(str, arguments)])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_another_seed_is_equal_and_another_rate_is_not(runs: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "compare", runs["good"], runs["other"])
    assert code == 0
    line = r"No problem found in 15 steps; the loss went from 2\.\d+ to 2\.\d+; `check` looks further\.\n"
    assert re.fullmatch(line, out), out
    code, out, _ = call(capsys, "compare", runs["good"], runs["other"], runs["changed"])
    assert code == 1
    assert "The learning rate is 0.05, in the good runs 0.1 at this step." in out


def test_a_baseline_gives_the_findings_of_its_runs(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "baseline.json"
    code, out, _ = call(capsys, "baseline", runs["good"], runs["other"], "-o", path)
    assert code == 0 and out.startswith(f"{path}: 2 runs, ") and out.endswith(" kB\n")
    of_runs = call(capsys, "compare", "--json", runs["good"], runs["other"], runs["changed"])
    of_baseline = call(capsys, "compare", "--json", path, runs["changed"])
    assert of_runs == of_baseline
    (finding,) = json.loads(of_baseline[1])["findings"]
    assert (finding["rule"], finding["first_step"], finding["fingerprint"]) == ("ReferenceSchedule", 0, "ReferenceSchedule")


def test_a_finding_that_is_meant_can_be_accepted(runs: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "compare", runs["good"], runs["changed"], "--accept", "ReferenceSchedule")
    assert code == 0 and "1 accepted" in out


def test_junit_has_a_case_for_each_rule(runs: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    compare = "compare", runs["good"], runs["other"], runs["changed"]
    code, out, _ = call(capsys, *compare, "--junit")
    suite = ElementTree.fromstring(out).find("testsuite")
    failed = [case.get("name") for case in suite if case.find("failure") is not None]
    assert code == 1 and failed == ["ReferenceSchedule"] and int(suite.get("tests", 0)) > 5
    assert {case.get("classname") for case in suite} == {"lightning_hooks.compare"}
    code, out, _ = call(capsys, *compare[:-1], "--junit")
    assert code == 0 and ElementTree.fromstring(out).find("testsuite").get("failures") == "0"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("compare", "nowhere", "{good}"), "reference: there is no run nowhere"),
        (("compare", "{good}", "nowhere"), "there is no run nowhere"),
        (("compare", "{good}", "{other}", "--accept", "LossSpike"), "--accept: there is no health rule 'LossSpike'"),
        (("baseline", "{good}", "-o", "baseline.txt"), "-o must be a file whose name ends with .json, got baseline.txt"),
        (("baseline", "{good}", "-o", "nowhere/baseline.json"), "-o: there is no folder nowhere"),
    ],
    ids=["no-good-run", "no-run", "unknown-rule", "ending", "folder"],
)
def test_bad_input_is_refused(
    runs: dict[str, Path],
    arguments: tuple[str, ...],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = call(capsys, *(each.format(**runs) for each in arguments))
    assert (code, out) == (2, "") and message in err


def test_a_baseline_that_cannot_be_written_is_named(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "baseline.json"
    path.mkdir()
    code, out, err = call(capsys, "baseline", runs["good"], "-o", path)
    assert (code, out) == (2, "") and f"-o: {str(path)!r} cannot be written (" in err and "Traceback" not in err


def test_a_run_that_is_compared_live_says_the_same(runs: dict[str, Path], tmp_path: Path) -> None:
    torch.manual_seed(2)
    monitor = HealthMonitor(reference=[runs["good"], runs["other"]], logdir=tmp_path)
    assert "reference=" in repr(monitor)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options: dict[str, Any] = {"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
        trainer = Trainer(max_steps=15, logger=False, accelerator="cpu", callbacks=[monitor], **options)
        trainer.fit(Perceptron(sgd(0.05), width=16, depth=1), loader(*digits(), seed=2))
    assert [(finding.rule, finding.first_step) for finding in monitor.findings] == [("ReferenceSchedule", 0)]
