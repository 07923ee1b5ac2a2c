"""Other packages run on healthy trainings and on the worst harmful rungs, and the page sets them beside this one."""

from __future__ import annotations

from typing import Any

from benchmarks.trainings.fitting import Job
from benchmarks.trainings.peer_table import section
from benchmarks.trainings.peers import peer_jobs
from tests.benchmarks.trainings.test_table import SPREAD, by_key, drawn, faulty, finding, repeats, verdict


def test_half_are_healthy_and_half_are_the_worst_rungs_of_faults_in_turn() -> None:
    lines = by_key(
        *(drawn(seed, discarded="below the bar" if seed == 3 else "") for seed in range(1, 6)),
        *(each for seed in (1, 2) for each in repeats(seed, SPREAD)),
        *(faulty(1, rung, 0.1 if rung < 3 else 0.9) for rung in range(5)),
        *(faulty(2, rung, 0.1) for rung in range(5)),
        *(faulty(1, rung, 0.1, "rate-too-low") for rung in range(5)),
        *(faulty(1, rung, 0.1, "classes-missing") for rung in range(5)),
    )
    jobs = peer_jobs(lines, range(1, 6), 6)
    assert jobs[:3] == [Job(1), Job(2), Job(4)]
    assert jobs[3:] == [Job(1, "rate-too-high", 2), Job(1, "rate-too-low", 4), Job(2, "rate-too-high", 4)]


def peer(job: str, *said: list[Any], name: str = "torchmortem", fault: str = "") -> dict[str, Any]:
    about = {"key": f"{job} {name}", "job": job, "peer": name, "version": "0.1.1", "fault": fault}
    return {**about, "said": [*said], "failures": [], "error": ""}


def test_an_alarm_fits_if_its_kind_names_the_fault() -> None:
    key = "1-rate-too-high-4"
    lines = by_key(drawn(1), drawn(2), *repeats(1, SPREAD), faulty(1, 4, 0.1))
    judged = by_key(verdict("1"), verdict("2", finding("LossSpike", 3)), verdict(key, finding("UpdateTooLarge", 3)))
    others = by_key(
        peer("1", ["Dead units", "warning", 1, 3, 9, []]),
        peer("2", ["Dead units", "info", 1, 3, 9, []]),
        peer(key, ["Update ratio too high", "critical", 1, 3, 9, []], fault="rate-too-high"),
        peer("1", ["TA200 Tensor Core Alignment", "warn", 2, 0, 0, []], name="torch-audit"),
        peer(key, ["TA404 Even Kernel Size", "warn", 2, 0, 0, []], name="torch-audit", fault="rate-too-high"),
    )
    text = section(others, lines, judged)
    assert "| lightning-hooks | 1 of 2 (50 %) | 1 of 1 (100 %) | 1 of 1 (100 %) | 0 |" in text
    assert "| torchmortem 0.1.1 | 1 of 2 (50 %) | 1 of 1 (100 %) | 1 of 1 (100 %) | 0 |" in text
    assert "| torch-audit 0.1.1 | 0 of 1 (0 %) | 1 of 1 (100 %) | 0 of 1 (0 %) | 0 |" in text
    assert section({}, lines, judged) == ""
