"""What a fit leaves on the disk is counted by the step."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import disk
from benchmarks.peers import OURS, WANDB
from benchmarks.workloads import SIZES


@pytest.mark.filterwarnings("ignore")
def test_each_step_takes_room_and_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "STEPS", {OURS: (2, 6), WANDB: (2, 4)})
    monkeypatch.setitem(sys.modules, "wandb", None)
    row = disk.measure("A", OURS, "tiny")
    assert row["bytes_per_step"] > 100 and row["once"] > 0
    assert disk.measure("A", WANDB, "tiny")["skipped"].endswith("(pip install --group bench)")


@pytest.mark.filterwarnings("ignore")
def test_a_folder_of_a_fit_is_thrown_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    assert disk.size(SIZES["tiny"]["A"], OURS, 2) > 0
    assert list(tmp_path.iterdir()) == []
