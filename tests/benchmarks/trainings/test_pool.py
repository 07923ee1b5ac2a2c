"""A job that fails, whatever way, is a line with its error, and the others go on. What is recorded is not recorded again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.trainings import __main__ as command
from benchmarks.trainings import results
from benchmarks.trainings.fitting import Job
from benchmarks.trainings.pool import run_all
from tests.benchmarks.trainings.work_for_tests import prepare, work


@pytest.mark.slow
def test_a_process_that_ends_is_an_error_and_the_others_go_on() -> None:
    lines = dict(run_all(work, range(6), 2, prepare))
    assert {job: line["double"] for job, line in lines.items() if "double" in line} == {0: 0, 1: 2, 4: 8, 5: 10}
    assert lines[2]["error"].startswith("the process ended")
    assert lines[3]["error"] == "ZeroDivisionError: no luck"


def test_what_is_recorded_is_not_recorded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [Job(seed) for seed in range(4)]
    done: list[str] = []

    def run_all(work: Any, jobs: list[Job], processes: int) -> Any:
        for job in jobs:
            done.append(job.key)
            yield job, {"key": job.key, "fault": "", "repeat": 0, "discarded": "", "error": "", "seconds": 1.0}
            if len(done) == 2:
                raise KeyboardInterrupt

    monkeypatch.setattr(command, "run_all", run_all)
    with pytest.raises(KeyboardInterrupt):
        command.record_all(jobs, tmp_path, 1)
    with (tmp_path / results.RECORDED).open("a") as file:
        file.write('{"key": "3", "fau')  # the line at which a run was killed
    command.record_all(jobs, tmp_path, 1)
    assert done == ["0", "1", "2", "3"]
    assert set(results.recorded(tmp_path)) == {"0", "1", "2", "3"}
