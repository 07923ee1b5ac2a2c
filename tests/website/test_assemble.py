"""The source of the site: each page is listed once, each list of names knows its names, and numbers stand on pictures."""

import re
from pathlib import Path

import pytest

from lightning_hooks.explained import pages
from website.assemble import EVIDENCE, assemble

ROOT = Path(__file__).parents[2]
OWN = sorted(ROOT.glob("website/*.md"))
RECORDED = {"faults", "health", "trainings", "reports", "common_faults", "clients", "versions"}
"""The pages whose tables programs write."""


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site") / "source"
    assemble(folder)
    return folder


def test_each_page_is_in_one_list(source):
    listed: list[str] = []
    for path in source.rglob("*.md"):
        for block in re.findall(r"^```\{toctree\}\n(.*?)^```$", path.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE):
            entries = [line for line in block.splitlines() if line and not line.startswith(":")]
            names = [re.sub(r".*<(.*)>", r"\1", entry) for entry in entries]
            listed += [(path.parent / name).relative_to(source).as_posix() for name in names]
    there = {path.relative_to(source).with_suffix("").as_posix() for path in source.rglob("*.md")}
    assert sorted(listed) == sorted(there - {"index"})


def test_the_site_has_the_pages_of_docs_and_of_each_name(source):
    shown = {path.name for path in (source / "docs").glob("*.md")}
    assert {path.name for path in (ROOT / "docs").glob("*.md")} - {"faults.md"} == shown
    assert set(pages()) | {"index"} == {path.stem for path in (source / "explain").glob("*.md")}
    assert (source / "configs/flight_recorder.yaml").exists() and (source / "docs/page-map.png").exists()
    assert {f"docs/{name}" for name in EVIDENCE} <= set((source / "evidence.md").read_text(encoding="utf-8").split())


def test_a_link_to_a_section_of_faults_leads_to_the_page_of_the_name(source):
    text = (source / "docs/check.md").read_text(encoding="utf-8")
    assert "[`OverfitsBatch`](../explain/OverfitsBatch.md)" in text
    assert [path for path in source.rglob("*.md") if "faults.md#" in path.read_text(encoding="utf-8")] == []


def test_lists_name_pages_that_exist():
    named = [
        name
        for path in OWN
        for line in re.findall(r"\{names\} (.*)", path.read_text(encoding="utf-8"))
        for name in line.split()
    ]
    assert len(named) > 50 and set(named) <= set(pages())


def test_the_start_page_leads_to_the_first_recipes():
    recipes = re.findall(r"\((\w+)\.md\)", (ROOT / "docs/cookbook/index.md").read_text(encoding="utf-8"))
    shown = re.findall(r"docs/cookbook/(\w+)\.md", (ROOT / "website/index.md").read_text(encoding="utf-8"))
    assert shown == [*recipes[:5], "index"]


def test_numbers_stand_on_the_pictures():
    text = (ROOT / "website/map.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^:::\{annotated\} (\S+)\n:alt: .*\n((?:.+\n)+?):::$", text, re.MULTILINE)
    assert len(blocks) == 3
    for path, lines in blocks:
        assert (ROOT / "website" / path).exists()
        for line in lines.splitlines():
            left, top, said = line.split(maxsplit=2)
            assert 0 < float(left) < 100 and 0 < float(top) < 100 and said.endswith(".")


def cells(text):
    table = [
        line for line in re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE).splitlines() if line.startswith("|")
    ]
    return [cell.strip() for line in table for cell in re.split(r"(?<!\\)\|", line.strip("|"))]


@pytest.mark.parametrize(
    "path",
    [path for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *OWN] if path.stem not in RECORDED],
    ids=lambda path: path.name,
)
def test_a_cell_of_a_table_holds_a_phrase(path):
    assert [cell for cell in cells(path.read_text(encoding="utf-8")) if len(cell) > 200] == []
