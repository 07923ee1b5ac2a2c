"""A line names the source that decided it, and lines of different sources are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.trainings import __main__ as command
from benchmarks.trainings import results
from benchmarks.trainings.families import FAMILIES
from benchmarks.trainings.fitting import Job
from benchmarks.trainings.mutators import FILES, MUTATORS
from benchmarks.trainings.source import files_of, refuse_mixed, source_of


def line(key: str, family: str = "mlp", fault: str = "", **source: str) -> dict[str, Any]:
    return {"key": key, "family": family, "fault": fault, "repeat": 0, "source": {**source_of(family, fault), **source}}


def test_each_family_and_fault_has_a_source() -> None:
    sources = [source_of(family, fault) for family in FAMILIES for fault in ("", *MUTATORS)]
    assert len({each["generator"] for each in sources}) == 1
    assert {part for each in sources for part in each} >= {"families/mlp", "families/cnn", "mutators/rates", "mutators/weights"}
    assert source_of("mlp") != source_of("cnn") and "mutators/rates" in source_of("mlp", "rate-too-high")


def test_a_source_has_the_files_that_it_imports_and_no_answers() -> None:
    for name in ("cnn", "resnet", "denoising", "segmentation"):
        assert "cnn.py" in {path.name for path in files_of(f"benchmarks.trainings.families.{name}")}
    files = {name: {path.name for path in files_of(f"benchmarks.trainings.mutators.{name}")} for name in {*FILES.values()}}
    assert files["labels"] == {"batches.py", "labels.py", "mutator.py"}
    assert files["numerics"] == {"loss.py", "mutator.py", "numerics.py", "optimizer.py"}
    assert not any("answers.py" in each for each in files.values())


def test_lines_of_two_sources_are_refused() -> None:
    refuse_mixed([line("1"), line("2", "cnn"), line("1-x", fault="rate-too-high"), {"key": "3", "error": "it ended"}], "here")
    with pytest.raises(ValueError, match=r"^here has lines of different versions of families/mlp \(.*: 1; abc: 2\): record"):
        refuse_mixed([line("1"), line("2", **{"families/mlp": "abc"}), line("3", "cnn")], "here")


def test_lines_of_an_earlier_source_are_refused_on_resume_only(tmp_path: Path) -> None:
    old = [line("1", generator="abc"), line("2", generator="abc")]
    refuse_mixed(old, "here")
    for each in old:
        results.append(tmp_path, each)
    with pytest.raises(ValueError, match=r"versions of generator \(abc: 1, 2; .*: the source of today\)"):
        command.record_all([Job(3)], tmp_path, 1)
