"""Fixed trainings get the right verdict, and the same from a file as in the fit: findings, causes, what is told."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest

from benchmarks.trainings import fitting
from benchmarks.trainings.families import FAMILIES
from benchmarks.trainings.fitting import Job, fitted, spec_of
from benchmarks.trainings.judging import diverged_at, judge_offline, judged
from benchmarks.trainings.mutators import MUTATORS
from benchmarks.trainings.recording import Kept, monitors, record
from galleries.rules import HEALTH
from lightning_hooks import HealthMonitor
from lightning_hooks.health import Cause, Finding, Severity
from lightning_hooks.health.text import Block, as_text
from lightning_hooks.records.saved_views import read_views, write_views
from tests.benchmarks.trainings.fixed import FAULTY, HEALTHY, UNNAMED
from tests.health.views import views_of


class Listener:
    """Notes each finding of a monitor with the step at which it was new or raised, and what its reporter tells."""

    def __init__(self) -> None:
        self.heard: dict[int, tuple[Finding, int]] = {}
        self.blocks: list[str] = []
        self.line = ""
        above = ["warn", {"call": lambda finding: self.note(finding)}]
        self.monitor = HealthMonitor(actions={"info": {"call": self.note}, "warning": above, "critical": above})

    def note(self, finding: Finding) -> None:
        assert self.monitor._job.reporter is not None
        self.heard[finding.number] = finding, self.monitor._job.reporter.diagnosis.evidence.step

    def tell(self, block: Block) -> None:
        self.blocks.append(as_text([block]))

    def tell_line(self, line: str) -> None:
        self.line = line.partition(" Diagnosis: ")[0]


@pytest.mark.slow
@pytest.mark.parametrize("job", [*HEALTHY, *FAULTY, *UNNAMED], ids=lambda job: job.key)
def test_a_fixed_training_is_judged_as_it_should_be_and_alike_from_a_file(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, listener = Kept(), Listener()
    _listen(listener, monkeypatch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = fitted(spec_of(job), tmp_path, monitors(kept, listener.monitor), job)
    write_views(tmp_path / "fit.views", kept.views)
    judgement = judge_offline(read_views(tmp_path / "fit.views"), error=result.error)
    final = {finding.number: finding for finding in listener.monitor.findings}
    assert judgement.findings == [(final[number], step) for number, (_, step) in listener.heard.items()]
    live = listener.monitor.causes
    assert [*map(_without_words, judgement.causes)] == [*map(_without_words, live)] and judgement.line == listener.line
    if listener.monitor.record is None:
        assert (judgement.causes, judgement.blocks) == (live, listener.blocks)
    else:  # The live monitor has noted which call gave the first number that is not finite, and says so.
        assert len(judgement.blocks) == len(listener.blocks)
    assert judgement.line == ("" if result.error else listener.monitor.summary["line"])
    said = {finding.rule for finding, _ in judgement.findings if finding.severity != Severity.INFO}
    if job in FAULTY:
        assert said & {*MUTATORS[job.fault].answer.rules}, said
    if job in HEALTHY:
        assert (result.error, said) == ("", set()) and result.value >= FAMILIES[result.spec.family].bar


def _without_words(cause: Cause) -> tuple[object, ...]:
    return cause.name, cause.findings, cause.first_step, cause.numbers


def _listen(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    outlet = "lightning_hooks.callbacks._outlet.TrainerOutlet"
    monkeypatch.setattr(f"{outlet}.tell", lambda self, block: listener.tell(block))
    monkeypatch.setattr(f"{outlet}.tell_line", lambda self, line: listener.tell_line(line))


def test_a_loss_has_diverged_if_it_stays_out() -> None:
    def of(losses: list[float]) -> int | None:
        return diverged_at(views_of([("loss", "loss")], [[each] for each in losses]))

    assert of([1.0, 9.0, 9.0, 9.0, 9.0, 2.0, 1.0]) is None
    assert of([1.0, 2.0, 4.0, 4.0, 4.0, 4.0, 4.0, 1.0]) == 2
    assert of([1.0, 2.0, 4.0, 5.0]) == 2
    assert of([1.0, float("inf")]) == 1
    assert diverged_at([]) is None


def test_a_fit_that_takes_too_long_has_no_measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never_ends(*_: object) -> None:
        raise TimeoutError("it took longer than 180 s")

    monkeypatch.setattr(fitting, "fit", never_ends)
    line = record(FAULTY[0], tmp_path)
    assert line["error"] == "TimeoutError: it took longer than 180 s" and "value" not in line


@pytest.mark.slow
def test_a_line_has_the_judgement_of_its_views_as_plain_values(tmp_path: Path) -> None:
    line = record(FAULTY[1], tmp_path)
    assert (line["key"], line["error"], line["onset"]) == (FAULTY[1].key, "", 0)
    verdict = judged(json.loads(json.dumps(line)), tmp_path)
    assert json.loads(json.dumps(verdict)) == verdict and verdict["key"] == line["key"] and verdict["rules"] == HEALTH
    assert {"NoGradient"} <= {finding[0] for finding in verdict["findings"]}


def test_views_that_cannot_be_read_are_an_error_of_their_line(tmp_path: Path) -> None:
    verdict = judged({"key": "7", "views": "7.views", "error": ""}, tmp_path)
    assert (
        verdict["key"] == "7" and verdict["error"].startswith("MissingError") and "7.views does not exist" in verdict["error"]
    )
