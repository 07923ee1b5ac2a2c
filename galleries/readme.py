"""Writes the table of faults in README.md from the recorded answers of the gallery: `python -m galleries.readme`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from galleries import markdown
from galleries.health.catalogue import faulty
from galleries.health.table import RESULTS
from lightning_hooks.errors import shortened
from lightning_hooks.health.row_names import shown_rows

PAGE: Final = Path(__file__).parents[1] / "README.md"
MARK: Final = "faults"
"""The name of the marks between which the table stands."""
FAULTS: Final[Mapping[str, str]] = {
    "encoder-forgotten": "NotInOptimizer",
    "schedule-by-epoch": "ScheduleAtOtherPace",
    "targets-ignored": "TargetsIgnored",
    "labels-of-other-rows": "LossConstant",
    "workers-read-all": "WorkersRepeat",
    "layer-dies-later": "DeadLayer",
    "rate-times-hundred": "LossDiverged",
    "infinite-batch": "NonFinite",
    "left-in-evaluation": "NormStatistics",
    "moments-not-restored": "StateNotRestored",
}
"""The trainings of the table, and the rule whose sentence it shows."""
_LONGEST: Final = 200  # letters of a cell


def main() -> None:
    """Write the table."""
    PAGE.write_text(with_faults(PAGE.read_text(encoding="utf-8"), recorded()), encoding="utf-8")


def recorded() -> list[dict[str, Any]]:
    """The lines of the gallery's record."""
    return [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]


def with_faults(page: str, results: Sequence[Mapping[str, Any]]) -> str:
    """The page with the table, and with what no layer shows below it."""
    return markdown.with_between(page, MARK, f"{table(results)}\n\n{unseen()}")


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """One row for each fault, with what was said at the first seed that named it."""
    trainings = {training.name: training for training in faulty()}
    rows = []
    for name, rule in FAULTS.items():
        sentence, at = _said(rule, [each for each in results if each["name"] == name])
        where = f"{shown_rows(at)}: " if any(at) else ""
        link = f"[`{rule}`](docs/faults.md#{rule.lower()})"
        rows.append([trainings[name].doc, link, shortened(f"{where}{sentence}", _LONGEST)])
    return markdown.table(["What is wrong", "is named", "in these words"], rows)


def unseen() -> str:
    """How many faults no layer shows, and where they are listed."""
    hidden = [each for each in faulty() if each.expects is not None and each.expects.kind == "invisible"]
    return (
        f"Of {len(hidden)} faults in the gallery layers show nothing, and no warning is given: "
        "[what they are, and what would see them](docs/health.md#what-layers-cannot-show)."
    )


def _said(rule: str, runs: Iterable[Mapping[str, Any]]) -> tuple[str, list[str]]:
    """The sentence of a rule and the rows at which it stands.

    Raises:
        LookupError: no run has a finding of the rule.
    """
    for run in runs:
        for (name, rows, _, _), text in zip(run["findings"], run["texts"], strict=True):
            if name == rule:
                return text, rows
    raise LookupError(f"no recorded answer has a finding of {rule}")


if __name__ == "__main__":
    main()
