"""Findings that a user accepts, by patterns and in files."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightning_hooks import HealthMonitor, RuleError
from lightning_hooks.health.accepting import accepted_patterns


def test_a_file_has_a_pattern_in_each_line(tmp_path: Path) -> None:
    file = tmp_path / "accepted.txt"
    file.write_text("# a frozen encoder\nDeadUnits/encoder.*\n\n  LossSpike \n")
    for accept in (file, {"file": str(file)}, [{"file": file}], [file]):
        assert accepted_patterns(accept) == ["DeadUnits/encoder.*", "LossSpike"]
    assert accepted_patterns(["DeadLayer", file]) == ["DeadLayer", "DeadUnits/encoder.*", "LossSpike"]
    assert HealthMonitor(accept={"file": str(file)}).accept == ["DeadUnits/encoder.*", "LossSpike"]


def test_a_file_that_cannot_be_read_or_names_no_rule_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe")
    (tmp_path / "unknown.txt").write_text("DeadUnit/encoder")
    for name, message in {
        "missing.txt": r"accept: cannot read the file '.*missing.txt': No such file or directory",
        "bytes.txt": r"accept: cannot read the file '.*bytes.txt': it is not UTF-8 text",
        "unknown.txt": r"accept: there is no health rule 'DeadUnit' \(did you mean 'DeadUnits' or",
    }.items():
        with pytest.raises(RuleError, match=f"^{message}"):
            HealthMonitor(accept=tmp_path / name)
    with pytest.raises(RuleError, match=r"^accept must be a pattern or a list of patterns, got 3"):
        accepted_patterns(3)  # type: ignore[arg-type]
    with pytest.raises(RuleError, match=r"^accept\[0\] must be a string, got 3"):
        accepted_patterns([3])  # type: ignore[list-item]


def test_a_text_is_always_a_pattern(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("LossSpike")
    assert accepted_patterns([f"DeadUnits/{tmp_path}/x.txt"]) == [f"DeadUnits/{tmp_path}/x.txt"]
    with pytest.raises(
        RuleError, match=r"^accept: there is no health rule 'x.txt'; a file of patterns is Path\('x.txt'\), in YAML"
    ):
        HealthMonitor(accept="x.txt")
    with pytest.raises(RuleError, match=r"^accept: a mapping must be \{file: PATH\}, got \{'path': 'x.txt'\}"):
        HealthMonitor(accept={"path": "x.txt"})


def test_a_config_names_a_file_by_a_mapping(tmp_path: Path) -> None:
    from jsonargparse import ArgumentParser

    parser = ArgumentParser()
    parser.add_class_arguments(HealthMonitor, "health")
    for given in ({"file": "x.txt"}, ["LossSpike", {"file": "x.txt"}]):
        assert parser.parse_object({"health": {"accept": given}})["health"]["accept"] == given


@pytest.mark.parametrize("option", ["accept", "reference"])
def test_a_list_of_a_config_stays_a_list(option: str) -> None:
    from jsonargparse import ArgumentParser

    parser = ArgumentParser()
    parser.add_class_arguments(HealthMonitor, "health")
    for given in (["DeadUnits/a", "LossSpike"], "LossSpike"):
        assert parser.parse_object({"health": {option: given}})["health"][option] == given
