"""The command `python -m galleries.reports.judge [--check] [NUMBER...]`: what is said of each script, faulty and fixed.

With `--check` the first batch of each Trainer is checked too.

Reports that are put aside are run only if their numbers are given: they show how much of what was built holds on faults that
nobody has looked at. Common faults, from 201 on, are run only if their numbers are given.
"""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from galleries.reports.catalogue import common, reports
from galleries.reports.report import Report, Run
from lightning_hooks import HealthMonitor, StatsMonitor
from lightning_hooks.health.rule import Severity
from lightning_hooks.health.text import Block, blocks_of

ASIDE: Final = frozenset({5, 7, 10, 11, 17, 18, 23, 24, 27})
"""The numbers of a third of the reports, drawn by lot: `random.Random(48).sample(range(1, 28), 9)`."""


@dataclass
class Said:
    """What is said of one run of a script.

    Args:
        told: the names of findings above `info`, with the step at which each began, and of causes.
        notes: the names of findings that are information.
        blocks: what the terminal shows of them, without colours.
        lines: the sentence on each fit.
        measure: of the model; NaN if the script raised an error.
        error: of the script; empty if there was none.
    """

    told: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    measure: float = float("nan")
    error: str = ""


def judge(report: Report, is_fixed: bool, seed: int = 0, *, width: int = 1, checks: bool = False) -> Said:
    """Run a script under the monitors that the README gives.

    Args:
        report: the script.
        is_fixed: whether its fault is left out.
        seed: of its weights and data.
        width: factor of the units of each hidden layer, where the script has such a factor.
        checks: whether the first batch of a Trainer is checked.
    """
    monitors: list[HealthMonitor] = []

    def watchers() -> list[Any]:
        monitors.append(HealthMonitor(check_first_batch=checks))
        return [StatsMonitor(loggers=[]), monitors[-1]]

    said = Said()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            said.measure = report.train(Run(is_fixed, seed, Path(folder), watchers, width))
        except Exception as failure:
            said.error = f"{type(failure).__name__}: {failure}"
    for monitor in monitors:
        said.told += [f"{each.rule}@{each.first_step}" for each in monitor.findings if each.severity is not Severity.INFO]
        said.notes += [each.rule for each in monitor.findings if each.severity is Severity.INFO]
        said.told += [f"→ {each.name}" for each in monitor.causes]
        said.blocks += blocks_of(monitor.causes, monitor.findings)
        said.lines.append(str((monitor.summary or {}).get("line", "")))
    return said


def main(arguments: Sequence[str] | None = None) -> None:
    """Judge the scripts with the given numbers, or all that are not put aside."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    checks, numbers = "--check" in given, {int(each) for each in given if each != "--check"}
    for report in [*reports(), *common()]:
        if report.number not in (numbers or {each.number for each in reports()} - ASIDE):
            continue
        print(f"{report.number} {report.name}: {report.doc}")
        for is_fixed in (False, True):
            said = judge(report, is_fixed, checks=checks)
            print(f"  {'fixed' if is_fixed else 'fault'} {said.measure:.3f} {' '.join(said.told) or 'nothing'} {said.error}")
            print(*(f"    {line[:160]}" for line in said.lines), sep="\n")


if __name__ == "__main__":
    main()
