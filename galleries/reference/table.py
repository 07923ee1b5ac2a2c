"""Writes the table of docs/baselines.md from the results of a gallery run: `python -m galleries.reference.table`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from galleries import markdown
from galleries.reference.pairs import PAIRS, Pair
from galleries.reference.run import RESULTS

PAGE: Final = Path(__file__).parents[2] / "docs" / "baselines.md"
MARK: Final = "gallery"
"""The name of the marks between which the table stands."""
_HEADS: Final = ("change", "named by", "at", "after", "in time", "words of the first finding")


def main() -> None:
    """Write the table."""
    results = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
    PAGE.write_text(markdown.with_between(PAGE.read_text(encoding="utf-8"), MARK, table(results)), encoding="utf-8")


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """One row for each pair."""
    rows = [_row(pair, [each for each in results if each["name"] == pair.name]) for pair in PAIRS]
    return markdown.table(_HEADS, rows)


def _row(pair: Pair, runs: Sequence[Mapping[str, Any]]) -> list[str]:
    right = f"{sum(run['right'] for run in runs)} of {len(runs)}"
    if not pair.rule:
        said = [finding[0] for run in runs for finding in run["told"]]
        return [pair.doc, ", ".join(dict.fromkeys(said)) or "nothing", "", "", right, ""]
    named = [finding for run in runs for finding in run["told"] if finding[0] == pair.rule and finding[1][0] in pair.rows]
    delays = [run["delay"] for run in runs if run["delay"] is not None]
    rows = " or ".join(f"`{row}`" if row else "the run" for row in _unique(finding[1][0] for finding in named))
    after = f"{median(delays):g} steps" if delays else "-"
    return [pair.doc, f"`{pair.rule}`", rows, after, right, named[0][3] if named else ""]


def _unique(rows: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(rows))


if __name__ == "__main__":
    main()
