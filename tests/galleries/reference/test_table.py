"""The table of docs/baselines.md is that of the results, which have every pair at three seeds."""

from __future__ import annotations

import json

from galleries.markdown import with_between
from galleries.reference.pairs import PAIRS
from galleries.reference.run import RESULTS
from galleries.reference.table import MARK, PAGE, table
from galleries.rules import command_of


def test_the_page_has_the_table_of_the_results() -> None:
    results = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
    runs = {(pair.name, seed) for pair in PAIRS for seed in range(3)}
    command = f"run: {command_of('reference/results.jsonl')}"
    assert {(each["name"], each["seed"]) for each in results} == runs, command
    page = PAGE.read_text(encoding="utf-8")
    assert with_between(page, MARK, table(results)) == page, "run: python -m galleries.reference.table"
    assert all(each["right"] for each in results)


def test_a_row_says_what_was_named_where_and_when() -> None:
    told = [["ReferenceModes", ["dropout"], 14, "in validation …"], ["ReferenceNumbers", ["x"], 20, "…"]]
    text = table([{"name": "dropout-in-validation", "seed": 0, "right": True, "delay": 4, "told": told}])
    assert "| Dropout is active in validation. | `ReferenceModes` | `dropout` | 4 steps | 1 of 1 | in validation … |" in text


def test_a_page_keeps_what_is_around_the_table() -> None:
    page = "a\n<!-- gallery -->\nold\n<!-- end of the gallery -->\nb\n"
    assert with_between(page, MARK, "new") == "a\n<!-- gallery -->\n\nnew\n\n<!-- end of the gallery -->\nb\n"
