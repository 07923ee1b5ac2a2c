from __future__ import annotations

from typing import Any

import pytest

from galleries.recorder.catalogue import faulty, healthy
from galleries.recorder.own import Recorder
from galleries.recorder.table import PAGE, recorded, replaced, section
from galleries.rules import command_of


def line(name: str, tool: str, right: dict[str, bool], backend: str = "eager", answer: Any = None) -> dict[str, Any]:
    versions = {"torch": "2.13.0", "lightning": "2.6.6", "transformers": "5.23.0"}
    return {"name": name, "tool": tool, "backend": backend, "right": right, "answer": answer} | versions


@pytest.fixture
def page() -> str:
    good = {"verdict": True, "module": True, "step": True, "operation": True}
    answers = [
        line("mask-module", "Ours", {"silent": True}),
        line("mask-module", "Theirs", {"silent": False}, answer={}),
        line("log-of-zero", "Ours", good, answer={}),
        line("log-of-zero", "Theirs", {**good, "operation": False, "verdict": False}, answer={}),
        line("root-at-zero", "Theirs", dict.fromkeys(good, False)),
    ]
    costs = [
        {"name": name, "tool": tool, "ratio": ratio, "milliseconds": milliseconds}
        for tool in ("Ours", "Theirs")
        for name, ratio, milliseconds in (("perceptron", 1.01, 40.0), ("mask-module", 1.5, 2.0), ("safe-root", None, 2.0))
    ]
    return section(answers, costs)


def test_the_page_has_the_table_of_the_recorded_results() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert replaced(text, "gallery", section(*recorded())) == text, "run: python -m galleries.recorder.table"


def test_in_the_record_every_part_of_our_answers_is_right() -> None:
    answers, _ = recorded()
    ours = [each for each in answers if each["tool"] == Recorder.name]
    names = {fault.name for fault in [*faulty(), *healthy()]}
    assert {each["name"] for each in ours} == names, f"run: {command_of('recorder/results/answers.jsonl')}"
    assert [(each["name"], each["backend"], each["right"]) for each in ours if not all(each["right"].values())] == []


def test_totals_count_the_parts_that_a_training_has(page: str) -> None:
    assert "| Ours | 1 of 1 | 1 of 1 | 1 of 1 | 1 of 1 | 0 of 1 | 1.50 | 1.01 |" in page
    assert "| Theirs | 0 of 2 | 1 of 2 | 1 of 2 | 0 of 2 | 1 of 1 | 1.50 | 1.01 |" in page


def test_a_cell_has_the_letters_of_what_is_right(page: str) -> None:
    assert (
        "| log-of-zero | A row of zeros has the energy 0, of which a layer takes the logarithm. | `aten.log` | all | ms |"
        in page
    )
    assert "| `aten.div` of SqrtBackward0 | not run | - |" in page


def test_a_healthy_training_is_silent_or_an_alarm(page: str) -> None:
    assert "| mask-module | A module returns masked scores of −∞, and a softmax reads them. | silent | alarm |" in page


def test_a_part_is_replaced_between_its_markers() -> None:
    assert replaced("a\n<!-- x -->\nold\n<!-- /x -->\nb\n", "x", "new") == "a\n<!-- x -->\nnew\n<!-- /x -->\nb\n"
    with pytest.raises(ValueError, match=r"needs <!-- y --> and <!-- /y --> once"):
        replaced("a", "y", "new")
