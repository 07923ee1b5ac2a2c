"""The command `python -m galleries.reports.page`: judges all reports and writes docs/reports.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Final

from galleries.reports.catalogue import reports
from galleries.reports.judge import ASIDE, Said, judge
from galleries.reports.report import Report

PAGE: Final = Path(__file__).parents[2] / "docs" / "reports.md"
ANSWERS: Final[Mapping[int, tuple[str, ...]]] = {
    1: ("LossComparesAll",),
    2: ("LossComparesAll",),
    3: ("ClippingMisplaced",),
    4: ("ScheduleMismatch",),
    5: ("ScheduleMismatch",),
    6: ("AccumulationNotDivided",),
    7: ("InitializationTooLarge",),
    8: ("TieLost",),
    9: ("GradientCut",),
    10: ("EvalIsDeterministic",),
    11: ("FrozenNormMoves", "FrozenMoves"),
    12: ("AveragedIntegers",),
    13: ("EvaluationMode",),
    14: ("SamplesAreIndependent",),
    15: ("SamplesAreIndependent",),
    16: ("EndNeverTarget",),
    17: ("TargetsIgnored",),
    18: ("NumericalRange",),
    19: (),
    20: ("EpochsRepeat",),
    21: ("LayersAreOne",),
    22: ("LossGivenWrongNumbers",),
    23: ("GradientsMixed",),
    24: (),
    25: ("VectorsFrozen",),
    26: ("OptimizerWritesCopy",),
    27: ("ResumedWithoutState", "StateNotRestored"),
}
"""The names of causes, rules or checks that say what is wrong, by the number of the report; none if nothing here says it."""

_HEAD: Final = """# Public reports, rebuilt

Twenty-seven public threads of the kind "my training does not work", whose cause is known, as small scripts with a faulty and
a fixed variant (`galleries/reports/`). They were written by people who had seen no rule, before the rules on the code around
the model were built. Nine of them, drawn by lot and marked with a star, were put aside and run once when those rules stood.
What they showed was mended afterwards, and `python -m galleries.reports.page`, which writes this page, judges all with the code
of today: each at one seed, under `StatsMonitor(), HealthMonitor()` alone. Where a script has a Trainer, the last column has
what `check_first_batch=True` tells besides; a plain loop has no such check.

"""


def _all(number: int) -> tuple[Said, Said, Said, Said]:
    report = next(each for each in reports() if each.number == number)
    return judge(report, False), judge(report, True), judge(report, False, checks=True), judge(report, True, checks=True)


def names(report: Report, *said: Said) -> bool:
    """Whether what is said of faulty runs, at any severity above `info`, is what is wrong."""
    told = {each.removeprefix("→ ").partition("@")[0] for one in said for each in one.told}
    return not told.isdisjoint(ANSWERS[report.number])


def _notes(report: Report, said: Said) -> bool:
    return not {*said.notes}.isdisjoint(ANSWERS[report.number])


def _besides(checked: Said, said: Said) -> str:
    """What is told only if the first batch is checked."""
    return ", ".join(f"`{each.removeprefix('→ ')}`" for each in checked.told if each not in said.told) or "–"


def page(judged: Sequence[tuple[Report, Said, Said, Said, Said]]) -> str:
    """The page of what was said.

    Args:
        judged: the reports, each with what was said of its faulty and of its fixed variant, and of both with checks.
    """
    named = [names(report, faulty) for report, faulty, *_ in judged]
    together = [names(report, faulty, checked) for report, faulty, _, checked, _ in judged]
    noted = sum(_notes(each[0], each[1]) for each, is_named in zip(judged, together, strict=True) if not is_named)
    aside = [is_named for (report, *_), is_named in zip(judged, named, strict=True) if report.number in ASIDE]
    silent = sum(not (fixed.told or checked.told) for _, _, fixed, _, checked in judged)
    counts = (
        f"{sum(named)} of {len(judged)} are named with what is wrong, {sum(aside)} of {len(aside)} of those with a star;\n"
        f"with the check {sum(together)} are, and {noted} more in a note. {silent} of {len(judged)} fixed variants get nothing "
        "above `info`, checked or not.\n\n"
    )
    rows = ["| report | what is wrong | told of it | named | told of the fixed variant | told by the check |", f"|{'---|' * 6}"]
    for (report, faulty, fixed, checked, _), is_named, is_known in zip(judged, named, together, strict=True):
        star = " *" if report.number in ASIDE else ""
        told, other = (", ".join(f"`{each.removeprefix('→ ')}`" for each in said.told) or "–" for said in (faulty, fixed))
        answer = "yes" if is_named else "by the check" if is_known else "in a note" if _notes(report, faulty) else "no"
        rows.append(f"| {report.name}{star} | {report.doc} | {told} | {answer} | {other} | {_besides(checked, faulty)} |")
    return _HEAD + counts + "\n".join(rows) + "\n"


def main() -> None:
    """Judge all reports in two processes, and write the page."""
    found = reports()
    with ProcessPoolExecutor(2) as pool:
        said = list(pool.map(_all, [each.number for each in found]))
    PAGE.write_text(page([(report, *each) for report, each in zip(found, said, strict=True)]), encoding="utf-8")


if __name__ == "__main__":
    main()
