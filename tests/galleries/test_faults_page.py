"""docs/faults.md has a section for each rule and check, with what they say of themselves."""

from __future__ import annotations

import re

import pytest

from galleries import faults_page
from lightning_hooks.checks.catalogue import checks_by_name
from lightning_hooks.explained import pages
from lightning_hooks.health.rules import rules_by_name


def test_the_page_is_written_from_the_rules_and_checks() -> None:
    assert faults_page.PAGE.read_text(encoding="utf-8") == faults_page.page(), "run: python -m galleries.faults_page"


def test_every_fault_has_one_section_and_every_threshold_a_meaning() -> None:
    page = faults_page.page()
    assert re.findall("^## (.*)$", page, re.MULTILINE) == sorted({*rules_by_name(), *checks_by_name()})
    assert re.findall(r"^- (?:On one batch: )?`\w+` = [^:]*: *$", page, re.MULTILINE) == [], "describe the field below Args:"


def test_a_section_says_what_explain_says_of_the_fault() -> None:
    section = faults_page.page().partition("## PoorInitialization\n")[2].partition("\n## ")[0]
    for part in pages()["PoorInitialization"].sections[:-1]:
        assert f"**{part.title}.**" in section
        assert [
            text for text in (*part.paragraphs, *part.points) if text.replace("*", "") not in section.replace("\\", "")
        ] == []


@pytest.mark.parametrize("said", ["- `most_gain` = 30.0: ", "- On one batch: `least_difference` = 1e-06: "])
def test_a_threshold_that_rule_and_check_share_stands_there_once(said: str) -> None:
    assert faults_page.page().count(said) == 1
