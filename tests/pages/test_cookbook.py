"""docs/cookbook/: each page does what it shows, in an empty folder, and its index and README.md lead to it."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from tests.pages.page import ROOT, blocks
from tests.pages.player import check

COOKBOOK = ROOT / "docs" / "cookbook"
PAGES = sorted(path.stem for path in COOKBOOK.glob("*.md") if path.stem != "index")
NEEDS = {"wandb": "wandb", "mlflow": "mlflow"}
"""The package without which the code of a page does not run."""
PROCESSES = {"compiled", "fsdp", "slack"}
"""Pages with a compiler, with processes of their own, or with a test of their own."""


def text(page: str) -> str:
    return (COOKBOOK / f"{page}.md").read_text(encoding="utf-8")


# Ignore what torch and Lightning warn of: few workers, no checkpoints, a compiler without CUDA.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("page", [each for each in PAGES if each not in PROCESSES])
def test_a_page_does_what_it_shows(page: str, folder: Path) -> None:
    package = NEEDS.get(page)
    if package is not None and importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    check(text(page))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("page", ["compiled", "fsdp"])
def test_a_page_with_a_compiler_or_two_processes_does_what_it_shows(page: str, folder: Path) -> None:
    check(text(page))


@pytest.mark.filterwarnings("ignore")
def test_slack_gets_the_finding(folder: Path, slack: list[dict[str, Any]]) -> None:
    check(text("slack"))
    (message,) = slack
    assert message["text"].startswith("CRITICAL: LossDiverged, since step 6. The loss stays above ")
    assert message["finding"]["rule"] == "LossDiverged" and message["finding"]["first_step"] == 6


@pytest.mark.filterwarnings("ignore")
def test_slack_gets_another_critical_finding_too(folder: Path, slack: list[dict[str, Any]]) -> None:
    """The actions of the page stand under a severity, so that a NaN does not stop the training silently."""
    (code,) = [block.text for block in blocks(text("slack")) if block.language == "python"]
    broken = code.replace("lr=1.2", "lr=0.01").replace("torch.randn(32, 20)\n", "torch.randn(32, 20) / (step != 5)\n")
    exec(compile(broken, "train.py", "exec"), {})
    (message,) = slack
    assert message["text"].startswith("CRITICAL: NonFinite, since step 5. ")


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_short_and_has_one_heading_and_a_result(page: str) -> None:
    content = text(page)
    outside = re.sub(r"^```.*?^```$", "", content, flags=re.DOTALL | re.MULTILINE)
    assert len(re.findall(r"^# ", outside, re.MULTILINE)) == 1
    assert len(content.splitlines()) <= 100
    languages = [block.language for block in blocks(content)]
    assert {"python", "text"} <= set(languages)
    assert all(block.text.strip() for block in blocks(content))


def test_the_index_and_the_readme_lead_to_every_page() -> None:
    for source, prefix in ((COOKBOOK / "index.md", ""), (ROOT / "README.md", "docs/cookbook/")):
        content = source.read_text(encoding="utf-8")
        assert [page for page in PAGES if f"]({prefix}{page}.md)" not in content] == [], source
