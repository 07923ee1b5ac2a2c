"""Which jobs a run has, and which seeds it may take."""

from __future__ import annotations

import pytest

from benchmarks.trainings.__main__ import main
from benchmarks.trainings.draw import drawn
from benchmarks.trainings.mutators import MUTATORS
from benchmarks.trainings.planning import faulty_jobs, seeds_in
from benchmarks.trainings.recording import discarded


def line(seed: int, why: str = "") -> dict[str, object]:
    return {"key": str(seed), "seed": seed, "fault": "", "repeat": 0, "discarded": why, "error": ""}


def test_faults_are_put_into_the_first_healthy_trainings_that_fit() -> None:
    lines = {str(seed): line(seed, "below the bar" if seed == 0 else "") for seed in range(130)}
    jobs = faulty_jobs(lines, range(129), 2)
    faults = [job for job in jobs if job.fault]
    assert {job.fault for job in faults} == set(MUTATORS)
    for name, mutator in MUTATORS.items():
        chosen = [seed for seed in range(1, 129) if mutator.fits(drawn(seed))][:2]
        assert [(job.seed, job.rung) for job in faults if job.fault == name] == [(seed, i) for seed in chosen for i in range(5)]
    repeats = [job for job in jobs if not job.fault]
    assert {job.seed for job in repeats} == {job.seed for job in faults} and {job.repeat for job in repeats} == {1, 2, 3, 4, 5}
    assert len({job.key for job in jobs}) == len(jobs)


def test_a_training_is_discarded_with_a_reason() -> None:
    assert discarded(float("-inf"), 0.4, []) == discarded(float("nan"), 0.4, []) == "below the bar"
    assert discarded(0.5, 0.4, [0.71, 0.2]) == "another rate does much better"
    assert discarded(0.5, 0.4, [0.7, float("-inf")]) == ""


@pytest.mark.parametrize("text", ["3", "5:3", "a:b", "99990:100010", "2000000:2000001", "-1:3"])
def test_seeds_of_no_kind_are_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match=f"--seeds {text}: "):
        seeds_in(text)
    with pytest.raises(SystemExit):
        main([f"--seeds={text}"])
    assert f"--seeds {text}: " in capsys.readouterr().err
