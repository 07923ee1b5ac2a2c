"""The commands that `python -m examples.sick` prints name runs that are there, from any current folder."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import pytest

from examples import sick


@pytest.mark.parametrize("arguments", [[], ["runs/sick"]], ids=["temporary", "given"])
def test_the_printed_commands_work_from_any_current_folder(
    arguments: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sick, "STEPS", 3)
    monkeypatch.setattr(sick, "TRAININGS", {"healthy": sick.TRAININGS["healthy"]})
    sick.main(arguments)
    said = capfd.readouterr()
    named = [Path(path) for path in re.findall(r"lightning-hooks (?:view|doctor) (\S+)", said.out + said.err)]
    root = (tmp_path / arguments[0]) if arguments else named[-1]
    assert {*named} == {root / "healthy", root} and root.is_relative_to(tmp_path)
    assert (named[0] / "summary.json").is_file() and Path.cwd() == tmp_path
