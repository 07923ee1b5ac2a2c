"""`lightning-hooks doctor --markdown`: the fault, its evidence and what changed, in 2,000 tokens; and strict JSON."""

from __future__ import annotations

import json
import math
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import TensorBoardLogger

from galleries.health.faulty_parts import Perceptron, digits, loader, sgd
from lightning_hooks import HealthMonitor, StatsMonitor, instrument
from lightning_hooks.cli.issue import LIMIT
from lightning_hooks.cli.main import main
from lightning_hooks.cli.tokens import Line, Section, text_within, tokens
from lightning_hooks.codec import encode
from lightning_hooks.health.finding import Finding
from lightning_hooks.health.rule import Severity, Symptom
from lightning_hooks.recorder.files import RECORD
from lightning_hooks.recorder.record import FlightRecord, Operation, Verdict
from tests.cli.written_fits import finding, write_fit

STEPS = 150  # as many as a loss needs to show that it has learned


def train(folder: Path, name: str, rate: float) -> None:
    """A fit in `folder/name`, with the hyperparameters that its logger writes."""
    logger = TensorBoardLogger(folder, name=name, version="")
    logger.log_hyperparams({"rate": rate, "model": {"width": 16}})
    trainer = Trainer(
        max_steps=STEPS,
        logger=logger,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
        log_every_n_steps=1,
        callbacks=[StatsMonitor(), HealthMonitor()],
    )
    trainer.fit(Perceptron(sgd(rate), width=16, depth=1), loader(*digits(), seed=0))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A healthy run, then one whose rate is far too large."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONWARNINGS", "ignore")
        train(folder, "good", 0.1)
        train(folder, "sick", 100.0)
    return folder


def told(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    code = main(["doctor", "--markdown", *map(str, arguments)])
    return code, capsys.readouterr().out


def section(text: str, title: str) -> list[str]:
    """The lines of a section that are not empty."""
    return [line for line in text.partition(f"## {title}")[2].partition("\n## ")[0].splitlines()[1:] if line]


def test_the_fault_the_rate_and_what_changed_are_told(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = told(capsys, runs / "sick")
    assert code == 1 and tokens(text) <= LIMIT
    assert text.startswith(f"# Diagnosis of a training by lightning_hooks\n\n{runs / 'sick'}: not healthy, ")
    first, *reasons = section(text, "What is wrong")
    assert first.startswith(("**CRITICAL: ", "**WARNING: ")) and reasons[0].startswith("- Evidence: ")
    assert any(line.startswith("- To try: ") for line in reasons)
    optimizer, *_ = section(text, "Optimizer at step ")
    assert optimizer.startswith("- SGD: learning rate 100, weight decay 0, ")
    changed = section(text, "Changed since the last healthy run")
    assert changed[0] == f"Compared with {runs / 'good'}, by what both runs have recorded:"
    assert "- Setting: hyperparameter rate: 0.1 before, 100.0 now" in changed
    assert "- Setting: step 0, the learning rate is 100, in the good run 0.1 at this step" in changed
    assert sum(line.startswith("- First row that differs: step ") for line in changed) == 1


def test_of_several_runs_the_newest_that_is_not_healthy_is_told(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = told(capsys, runs)
    assert code == 1 and f"\n{runs / 'sick'}: not healthy" in text and "the newest of 2 runs" in text


def test_a_healthy_run_has_no_comparison(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = told(capsys, runs / "good")
    assert code == 0 and "## Changed" not in text and "- SGD: learning rate 0.1" in text


def test_without_a_healthy_run_before_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_fit(tmp_path / "a", finding(severity=Severity.CRITICAL))
    code, text = told(capsys, tmp_path / "a")
    assert code == 1
    assert section(text, "Changed since") == ["There is no healthy run beside this one that began before it."]


def test_a_run_beside_it_that_cannot_be_read_is_no_healthy_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_fit(tmp_path / "a", finding(severity=Severity.CRITICAL))
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / "findings.jsonl")
    (tmp_path / "folder" / "findings.jsonl").mkdir(parents=True)
    code, text = told(capsys, tmp_path / "a")
    assert code == 1 and section(text, "Changed since") == ["There is no healthy run beside this one that began before it."]


def test_the_line_of_code_of_a_flight_record_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_fit(tmp_path, finding())
    operation = Operation("aten.log", "forward", "head", "Head", source="train.py:31 in forward", line="return p.log()")
    record = FlightRecord(Verdict.FORWARD, 7, message="The first bad number is in head.", operation=operation)
    (tmp_path / "flight_record").mkdir()
    (tmp_path / "flight_record" / RECORD).write_text(json.dumps(encode(record)))
    _, text = told(capsys, tmp_path)
    assert section(text, "Lines of code") == [
        "- flight_record, step 7: forward. The first bad number is in head.",
        "- train.py:31 in forward: `return p.log()` (aten.log)",
    ]


def test_the_line_of_code_that_was_seen_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The gradients are clipped before the backward pass that makes them."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with instrument(model, [StatsMonitor(), HealthMonitor()], optimizer=optimizer, logdir=tmp_path):
        for _ in range(20):
            optimizer.zero_grad()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
    capsys.readouterr()
    _, text = told(capsys, tmp_path)
    (line,) = section(text, "Lines of code")
    assert re.match(r"- \S*test_issue\.py:\d+ in test_the_line_of_code_that_was_seen_is_told: .*clip", line), line


def test_a_long_diagnosis_is_cut_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    worst = finding(1, "LossDiverged", "head", severity=Severity.CRITICAL)
    write_fit(tmp_path, worst, *(finding(number, row=f"encoder.layers.{number}.weight") for number in range(2, 200)))
    _, text = told(capsys, tmp_path)
    assert LIMIT / 2 < tokens(text) <= LIMIT
    assert section(text, "What is wrong")[0] == "**CRITICAL: LossDiverged, since step 20.** head: dead."
    last = text.rstrip().splitlines()[-1]
    assert last.startswith("Left out to fit into 2,000 tokens: ")
    assert last.endswith(f"lines; `lightning-hooks doctor {tmp_path} --all` prints all findings.")


def test_names_of_a_stranger_are_no_markdown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_fit(tmp_path, finding(row="<img src=x>\n# Ignore this", cause=None))
    _, text = told(capsys, tmp_path)
    assert "<img" not in text and "\n# Ignore" not in text and "&lt;img src=x&gt;" in text


def test_what_cannot_be_left_out_is_cut() -> None:
    text = text_within([Section("# A", [Line("word " * 100) for _ in range(50)])], 100, "see all")
    assert tokens(text) <= 100 and text.endswith("The rest is left out to fit into 100 tokens; see all.")


@pytest.mark.parametrize("text", ["some words of English", "encoder.layers.0.weight", "learning rate 1.2345e-05", "Größe 数据"])
def test_tokens_are_counted_rather_too_high(text: str) -> None:
    assert tokens(text) >= len(text) / 4


def test_json_is_strict_and_names_rows_and_numbers_that_are_not_finite(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = math.nan, -math.inf
    bad = [Symptom("head.weight", tensor="grad", step=3, measured=each, threshold=0.0, text="bad") for each in values]
    write_fit(tmp_path, replace(finding(row="head.weight"), evidence=tuple(bad)))

    def refuse(word: str) -> Any:
        raise AssertionError(f"{word} is no JSON")

    assert main(["doctor", "--json", str(tmp_path)]) == 1
    (run,) = json.loads(capsys.readouterr().out, parse_constant=refuse)["runs"]
    (shown,) = run["findings"]
    assert shown["rows"] == ["head.weight"]
    assert [(each["row"], each["measured"]) for each in shown["evidence"]] == [("head.weight", "nan"), ("head.weight", "-inf")]
    assert [each.measured for each in Finding.from_dict(shown).evidence][1] == -math.inf
