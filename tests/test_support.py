"""docs/support.md against the tests that it names, and stated versions against those that were run."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
STATED = {"torch": "torch", "Lightning": "lightning", "torchmetrics": "torchmetrics", "TensorBoard": "tensorboard"}


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def rows() -> list[list[str]]:
    """The cells of each row of the matrix, without heads and rules."""
    lines = [line.strip().strip("|").split("|") for line in read("docs/support.md").splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in cells] for cells in lines if cells[0].strip() not in ("set-up", "private name", "---")]


def files_of(row: list[str]) -> list[str]:
    return re.findall(r"`([^`]+)`", row[-1])


def constraints() -> dict[str, str]:
    lines = [line for line in read("constraints.txt").splitlines() if not line.startswith("#")]
    return {name: version for name, _, version in (line.partition("==") for line in lines)}


def python() -> str:
    found = re.search(r"\(Python (\d+\.\d+)\)", read("constraints.txt"))
    assert found
    return found[1]


def test_every_row_says_what_tests_it_and_those_files_are_there() -> None:
    assert len(rows()) > 20
    for row in rows():
        assert len(row) in (5, 8) and files_of(row), row[0]
        for name in files_of(row):
            assert re.fullmatch(r"tests/(\w+/)+test_\w+\.py", name) and (ROOT / name).is_file(), (row[0], name)


def test_every_file_of_the_conformance_suite_has_a_row() -> None:
    named = {name for row in rows() for name in files_of(row)}
    there = {f"tests/conformance/{file.name}" for file in (ROOT / "tests/conformance").glob("test_*.py")}
    assert there - named == set()


def test_the_number_of_architectures_is_that_of_the_zoo() -> None:
    zoo = re.search(r"^ZOO: .*?^}", read("tests/conformance/test_zoo.py"), re.DOTALL | re.MULTILINE)
    assert zoo
    count = len(re.findall(r'^    "[\w-]+": \(', zoo[0], re.MULTILINE))
    for page in ("docs/support.md", "README.md"):
        assert f"{count} architectures" in read(page), page


@pytest.mark.parametrize("page", ["README.md", "CHANGELOG.md", "docs/support.md"])
def test_stated_versions_are_those_that_were_run(page: str) -> None:
    text, pinned = read(page), constraints()
    found = {name: re.findall(rf"\b{name} (\d+\.\d+(?:\.\d+)?)", text) for name in STATED}
    for name, package in STATED.items():
        assert set(found[name]) == {pinned[package]}, (page, name)
    assert set(re.findall(r"\bPython (\d+\.\d+)", text)) == {python()}


def test_requirement_ranges_claim_one_minor_version_which_was_run() -> None:
    project = tomllib.loads(read("pyproject.toml"))["project"]
    major, minor = python().split(".")
    assert project["requires-python"] == f">={major}.{minor},<{major}.{int(minor) + 1}"
    pinned = constraints()
    assert set(STATED.values()) <= {re.split(r"\W", line)[0] for line in project["dependencies"]}
    for line in project["dependencies"]:
        name, low, high = re.fullmatch(r"(\w+)>=([\d.]+),<([\d.]+)", line).groups()  # type: ignore[union-attr]
        major, minor = pinned[name].split(".")[:2]
        assert (low, high) == (f"{major}.{minor}", f"{major}.{int(minor) + 1}"), line
