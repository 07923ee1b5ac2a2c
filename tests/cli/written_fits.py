"""What fits leave in a folder, written by hand, for tests of `lightning-hooks doctor`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightning_hooks.cli.main import main
from lightning_hooks.health.finding import Cause, Event, Finding
from lightning_hooks.health.journal import Journal
from lightning_hooks.health.learning import LossCourse
from lightning_hooks.health.rule import Severity, Symptom
from lightning_hooks.health.summary import summary_of

BEGIN, END = Event("begin", 0), Event("end", 99)
LEARNED = LossCourse(2.3, 0.7, has_learned=True)


def finding(number: int = 1, rule: str = "DeadUnits", row: str = "fc", first: int = 20, **options: Any) -> Finding:
    symptom = Symptom(row, tensor="output", step=first, measured=0.9, threshold=0.5, text="90 % of the units are dead")
    fixed = {"severity": Severity.WARNING, "number": number, **options}
    return Finding(
        rule,
        rows=(row,),
        tensor="output",
        first_step=first,
        last_step=first + 9,
        evidence=(symptom,),
        message=f"{row}: dead.",
        **fixed,
    )


def cause(*numbers: int, name: str = "BadBatch", step: int = 20) -> Cause:
    return Cause(name, "One batch differs.", ("DeadUnits/fc",), numbers=numbers, first_step=step)


def found(*about: Finding | Cause, step: int = 30) -> list[Event]:
    return [Event("new", step, each) if isinstance(each, Finding) else Event("cause", step, cause=each) for each in about]


def summary(*about: Finding | Cause) -> dict[str, Any]:
    known = [each for each in about if isinstance(each, Finding)]
    causes = [each for each in about if isinstance(each, Cause)]
    looked: dict[str, Any] = {"ran": ["R"], "could_not": {}, "failed": {}, "accepted": []}
    return summary_of(99, 100, **looked, findings=known, causes=causes, course=LEARNED)


def write_fit(folder: Path, *about: Finding | Cause, ends: bool = True) -> None:
    """Write what a fit leaves that found something."""
    journal = Journal(folder)
    journal.write([BEGIN, *found(*about)])
    if ends:
        journal.write_summary(summary(*about))
        journal.write([END])
    journal.close()


ABOUT = (finding(1), finding(2, "LossSpike", ""), cause(1))


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*options: str) -> tuple[int, str, str]:
        code = main(["doctor", str(tmp_path), *options])
        said = capsys.readouterr()
        return code, said.out, said.err

    return call
