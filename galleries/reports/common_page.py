"""The command `python -m galleries.reports.common_page`: judges the common faults and writes docs/common_faults.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

from galleries.reports.catalogue import common
from galleries.reports.judge import Said, judge
from galleries.reports.report import Report

PAGE: Final = Path(__file__).parents[2] / "docs" / "common_faults.md"
ANSWERS: Final[Mapping[int, str]] = {
    201: "DataNotNormalised",
    202: "EvaluationMode",
    203: "LearningRateTooLow",
    204: "LearningRateTooHigh",
    205: "ActivationsDead",
    206: "GradientsNotCleared",
    207: "LossAtChance",
    208: "RecurrenceExplodes",
    209: "LossGivenWrongNumbers",
    210: "ParametersForgotten",
    211: "FutureIsHidden",
    212: "NumericalRange",
}
"""The name of the cause or check that says what is wrong, by the number of the script."""
CHECKED: Final = frozenset({211})
"""The numbers of the scripts that are run with `HealthMonitor(check_first_batch=True)`."""


class Setting(NamedTuple):
    """How a script is varied.

    Args:
        seed: of weights and data.
        width: factor of the units of each hidden layer.
    """

    seed: int
    width: int


SETTINGS: Final = (Setting(0, 1), Setting(1, 1), Setting(0, 2))
_HEAD: Final = """# Common faults

Twelve faults that a practitioner makes every week, and three healthy trainings, each as a script of some sixty lines
(`galleries/reports/common_*.py`) that runs for seconds on a CPU. The scripts were written before anybody looked at what the
rules say of them. Each is judged three times, under `Trainer(callbacks=[StatsMonitor(), HealthMonitor()])` without any option:
at two seeds, and with twice as many units in each hidden layer. Only the missing mask, which shows in no number of a training
that goes well, is told by the check of the first batch, `HealthMonitor(check_first_batch=True)`.
`python -m galleries.reports.common_page` runs all and writes this page.

"""


def _judged(number: int, setting: Setting) -> Said:
    report = next(each for each in common() if each.number == number)
    return judge(report, not report.cause, setting.seed, width=setting.width, checks=number in CHECKED)


def is_named(report: Report, said: Said) -> bool:
    """Whether what is said of a run names its fault, and blames nothing else before it."""
    return bool(said.blocks) and ANSWERS[report.number] in said.blocks[0].verdict.split()[0].rstrip(".,")


def page(judged: Sequence[tuple[Report, Sequence[Said]]]) -> str:
    """The page of what was said.

    Args:
        judged: the scripts, each with what was said of it in each of `SETTINGS`.
    """
    faults = [(report, runs) for report, runs in judged if report.cause]
    healthy = [(report, runs) for report, runs in judged if not report.cause]
    named = sum(all(is_named(report, said) for said in runs) for report, runs in faults)
    silent = sum(all(not said.told for said in runs) for _, runs in healthy)
    lines = [
        f"{named} of {len(faults)} faults are named with what is wrong in all three runs; {silent} of {len(healthy)} healthy "
        "trainings get nothing above `info`.",
        "",
        "| script | what is wrong | named, of three runs | told first, at seed 0 | what else is told |",
        "|---|---|---|---|---|",
    ]
    for report, runs in judged:
        first, others = next(iter(runs[0].blocks), None), runs[0].blocks[1:]
        times = f"{sum(is_named(report, said) for said in runs)}" if report.cause else "–"
        told = "–" if first is None else f"{first.severity}: {first.verdict}"
        more = ", ".join(f"`{each.verdict.split()[0].rstrip('.,')}`" for each in others)
        also = sorted({name for said in runs[1:] for name in said.told} - set(runs[0].told)) if not report.cause else []
        cells = (f"`{report.name}`", report.doc, times, told, more or ", ".join(also) or "–")
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return _HEAD + "\n".join(lines) + "\n"


def main() -> None:
    """Judge all scripts, one after the other, and write the page."""
    found = common()
    tasks = [(report.number, setting) for report in found for setting in SETTINGS]
    with ProcessPoolExecutor(1) as pool:
        said = list(pool.map(_judged, *zip(*tasks, strict=True)))
    per = len(SETTINGS)
    judged = [(report, said[per * i : per * (i + 1)]) for i, report in enumerate(found)]
    PAGE.write_text(page(judged), encoding="utf-8")


if __name__ == "__main__":
    main()
