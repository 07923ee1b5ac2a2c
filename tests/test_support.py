"""docs/support.md against the tests that it names, and stated versions against those that were run."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.environments.matrix import REPORTED, floors, read_results, rendered

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
    assert f"{count} architectures" in read("docs/support.md")


def known(package: str) -> set[str]:
    """The versions that may be stated: those of constraints.txt, lower bounds, and those that the matrix has run."""
    ran = {result["versions"][package] for result in read_results().values() if package in result.get("versions", {})}
    return {constraints()[package], *ran, *(version for name, version in floors().items() if name == package)}


@pytest.mark.parametrize("page", ["README.md", "CHANGELOG.md", "docs/install.md", "docs/support.md"])
def test_stated_versions_are_those_that_were_run(page: str) -> None:
    text = read(page)
    for name, package in STATED.items():
        found = re.findall(rf"\b{name} (\d+\.\d+(?:\.\d+)?)", text)
        assert page in ("README.md", "docs/install.md") or constraints()[package] in found, (page, name)
        for stated in found:
            assert any(version == stated or version.startswith(f"{stated}.") for version in known(package)), (
                page,
                name,
                stated,
            )
    pythons = {result["python"].rpartition(".")[0] for result in read_results().values()}
    assert {python()} <= set(re.findall(r"\bPython (\d+\.\d+)", text)) <= pythons | {python()}


def test_lower_bounds_were_run_all_of_them_together() -> None:
    project = tomllib.loads(read("pyproject.toml"))["project"]
    assert project["requires-python"] == f">={python()}"
    result = read_results()["floors"]
    assert result["python"].startswith(f"{python()}.") and not result["failed"]
    for name, version in floors().items():
        if name in REPORTED:
            found = result["versions"][name].partition("+")[0]
            assert found == version or re.fullmatch(rf"{re.escape(version)}(\.0)*", found), name


def test_the_page_of_versions_is_that_of_the_results() -> None:
    assert read("docs/versions.md") == rendered(read_results()), "python -m tests.environments.matrix --render"
