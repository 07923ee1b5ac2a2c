"""Writes what watching costs into README.md, from files of `results`: `python -m benchmarks.readme`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks.markdown import table
from benchmarks.output import RESULTS, read
from benchmarks.peers import OURS, WANDB
from benchmarks.whole_fits import ALONE, BOTH
from galleries.markdown import with_between

PAGE: Final = Path(__file__).parents[1] / "README.md"
MARK: Final = "costs"
"""The name of the marks between which the figures stand."""
_STEPS: Final = 1000  # of which the disk is told
Row = Mapping[str, Any]


def main() -> None:
    """Write the figures."""
    PAGE.write_text(with_between(PAGE.read_text(encoding="utf-8"), MARK, costs()), encoding="utf-8")


def costs(folder: Path = RESULTS) -> str:
    """What is added to a step, and a table with a row for each workload.

    Args:
        folder: of the JSON files.
    """
    peers, disk, common = (_rows(name, folder) for name in ("peers", "disk", "common"))
    lines = [
        [
            f"{row['workload']}: {row['title']}",
            f"{row['step_ms']:.0f} ms",
            *(_time(_of(peers, row, who)) for who in (OURS, WANDB)),
        ]
        + [_disk(_of(disk, row, who)) for who in (OURS, WANDB)]
        for row in peers
        if row["who"] == OURS
    ]
    heads = ["training", "step", "all, every step", "`wandb.watch`", f"disk, {_STEPS:,} steps", "`wandb.watch`"]
    ours, theirs = (_added([row for row in peers if row["who"] == who]) for who in (OURS, WANDB))
    said = [
        f"Watching all outputs, parameters and their gradients at every step adds {ours} to a step, on two cores of a CPU.",
        f'`wandb.watch(log="all", log_freq=1)`, which draws histograms of parameters and gradients, adds {theirs}.',
    ]
    alone = [f"{_added([row])} to training {row['workload']}" for row in common if row["variant"] == "default"]
    if alone:
        said.append(f"`StatsMonitor()` with its defaults, which measure updates too, adds {' and '.join(alone)} of the table.")
    quick_start = _quick_start(_rows("whole_fits", folder))
    if quick_start:
        said.insert(0, f"`StatsMonitor(), HealthMonitor()` add {_added(quick_start)} to a step, the mean of whole fits.")
    return f"{' '.join(said)}\n\n{table(heads, lines)}"


def _quick_start(rows: list[Row]) -> list[Row]:
    """The ratio of the mean steps of fits with both callbacks to those of fits without, for each workload of whole fits.

    The fits with both are recorded over those with the first, and these over fits without any.
    """
    means = {(row["workload"], row["what"]): row["mean"] for row in rows}
    return [
        {"workload": workload, "median": mean * means[workload, BOTH]}
        for (workload, what), mean in means.items()
        if what == ALONE and (workload, BOTH) in means
    ]


def _added(rows: list[Row]) -> str:
    """What is added to the step in the workload in which it is least and in that in which it is most, in percent."""
    added = sorted({round(100 * (row["median"] - 1)) for row in rows})
    if not added:
        return "–"
    return f"{added[0]} %" if len(added) == 1 else f"{added[0]} to {added[-1]} %"


def _rows(name: str, folder: Path) -> list[Row]:
    """The rows of a file that were measured."""
    found = read(name, folder)
    return [] if found is None else [row for row in found["rows"] if "skipped" not in row]


def _of(rows: list[Row], like: Row, who: str) -> Row | None:
    """The row of a workload and of who watches it."""
    return next((row for row in rows if row["workload"] == like["workload"] and row["who"] == who), None)


def _time(row: Row | None) -> str:
    return "–" if row is None else f"{_ratio(row)} (+{row['extra_ms']:.1f} ms)"


def _ratio(row: Row) -> str:
    return f"{row['median']:.2f}×"


def _disk(row: Row | None) -> str:
    return "–" if row is None else f"{row['bytes_per_step'] * _STEPS / 1e6:.0f} MB"


if __name__ == "__main__":
    main()
