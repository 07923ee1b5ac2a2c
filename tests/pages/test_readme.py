"""README.md: each snippet runs as it is pasted, figures and sentences are recorded ones, and questions find their answer."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from benchmarks import output
from benchmarks.readme import MARK as COSTS
from benchmarks.readme import costs
from benchmarks.whole_fits import ALONE, BOTH
from galleries.markdown import with_between
from galleries.readme import recorded, table, with_faults
from tests.pages.page import ROOT, blocks
from tests.pages.player import check

README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.filterwarnings("ignore")
def test_every_snippet_runs_as_it_is_pasted_and_prints_what_is_shown(folder: Path) -> None:
    check(README)
    assert (folder / "runs" / "run_0" / "report.html").exists()


def test_the_commands_of_the_shell_are_there() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    lines = [line for block in blocks(README) if block.language == "bash" for line in block.text.splitlines()]
    assert {line.split()[0] for line in lines} == {"pip", "lightning-hooks", "make"}
    assert set(re.findall(r"'?\.\[([\w-]+)\]'", README)) <= set(project["optional-dependencies"])
    assert all(f"\n{line.split()[1]}:" in makefile for line in lines if line.startswith("make "))


def test_installation_comes_first_and_the_page_is_short() -> None:
    lines = README.splitlines()
    assert any(line.startswith("pip install") for line in lines[:20])
    assert len(lines) <= 150
    (first, *_) = [block for block in blocks(README) if block.language == "python"]
    assert len([line for line in first.text.splitlines() if line]) <= 15


@pytest.mark.parametrize(
    ("question", "words", "target"),
    [
        ("how do I install it", "pip install '.[lightning]'", "docs/install.md"),
        ("what does it cost", "## What it costs", "benchmarks/RESULTS.md"),
        ("does it work with transformers", "HooksTrainerCallback(", "docs/api.md#the-trainer-of-transformers"),
        ("how do I watch only attention", "only the attention layers", "docs/cookbook/attention.md"),
        ("how do I tell Slack", "tell Slack", "docs/cookbook/slack.md"),
        ("what is an update ratio", "what an update ratio is", "docs/cookbook/update_ratio.md"),
    ],
)
def test_a_question_finds_its_answer(question: str, words: str, target: str) -> None:
    assert words in README and f"]({target})" in README, question


def test_the_costs_are_those_of_the_recorded_figures() -> None:
    assert with_between(README, COSTS, costs()) == README, "run: python -m benchmarks.readme"


def test_the_faults_are_those_of_the_recorded_answers() -> None:
    assert with_faults(README, recorded()) == README, "run: python -m galleries.readme"


def test_a_row_of_costs_has_time_and_disk_of_both(tmp_path: Path) -> None:
    row = {"workload": "A", "title": "MLP, small", "step_ms": 8.4, "extra_ms": 1.4}
    peers = [{**row, "who": "lightning_hooks", "median": 1.2}, {**row, "who": "wandb.watch", "median": 4.6, "extra_ms": 33.0}]
    output.write("peers", peers, tmp_path)
    assert "| A: MLP, small | 8 ms | 1.20× (+1.4 ms) | 4.60× (+33.0 ms) | – | – |" in costs(tmp_path)
    output.write("disk", [{**row, "who": "lightning_hooks", "bytes_per_step": 9100.0}], tmp_path)
    output.write("common", [{**row, "variant": "default", "median": 1.3}], tmp_path)
    text = costs(tmp_path)
    assert "| 9 MB | – |" in text and "adds 30 % to training A of the table." in text
    assert text.startswith("Watching all outputs") and "adds 20 % to a step" in text and "adds 360 %" in text
    fits = [{**row, "what": ALONE, "mean": 1.2}, {**row, "what": BOTH, "mean": 1.1}, {**row, "what": "another", "mean": 9.0}]
    output.write("whole_fits", fits, tmp_path)  # both over the first alone: 1.2 × 1.1
    assert costs(tmp_path).startswith("`StatsMonitor(), HealthMonitor()` add 32 % to a step, the mean of whole fits. Watching")


def test_a_sentence_stands_beside_its_fault() -> None:
    (line,) = [line for line in table(recorded()).splitlines() if line.startswith("| The optimizer holds the head only. |")]
    assert "no optimizer holds this parameter, which gets a gradient" in line
    with pytest.raises(LookupError, match="no recorded answer has a finding of NotInOptimizer"):
        table([])
