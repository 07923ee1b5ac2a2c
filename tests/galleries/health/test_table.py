"""docs/health.md is the page of the recorded results."""

from __future__ import annotations

from galleries.health import table


def test_the_page_is_that_of_the_recorded_results() -> None:
    assert table.PAGE.read_text(encoding="utf-8") == table.recorded_page(table.RESULTS), "run: python -m galleries.health.table"
