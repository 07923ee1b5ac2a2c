"""Which jobs a run has: all seeds as they are drawn, and the faults of those that are healthy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.trainings.draw import drawn
from benchmarks.trainings.fitting import REPEATS, Job
from benchmarks.trainings.mutators import MUTATORS, RUNGS
from benchmarks.trainings.spec import REPORTING, SETTING


def seeds_in(text: str) -> range:
    """The seeds of `FROM:TO`.

    Raises:
        ValueError: they are not seeds of one of the two ranges of the protocol.

    Example:
        >>> seeds_in("3:5")
        range(3, 5)
        >>> seeds_in("99999:100001")
        Traceback (most recent call last):
        ValueError: --seeds 99999:100001: seeds from 0 set thresholds, and those from 100000 report; give a range of one kind
    """
    first, _, last = text.partition(":")
    if not (first.isdigit() and last.isdigit() and int(first) < int(last)):
        raise ValueError(f"--seeds {text}: give FROM:TO, as 0:20")
    seeds = range(int(first), int(last))
    if not any(seeds[0] in kind and seeds[-1] in kind for kind in (SETTING, REPORTING)):
        raise ValueError(
            f"--seeds {text}: seeds from {SETTING.start} set thresholds, and those from {REPORTING.start} report; "
            "give a range of one kind"
        )
    return seeds


def healthy_jobs(seeds: Sequence[int]) -> list[Job]:
    """Each seed as it is drawn."""
    return [Job(seed) for seed in seeds]


def is_healthy(line: Mapping[str, Any]) -> bool:
    """Whether a line is of a drawn training that is one of the healthy ones."""
    return not line["fault"] and not line["repeat"] and not line.get("error") and line.get("discarded") == ""


def faulty_jobs(lines: Mapping[str, Mapping[str, Any]], seeds: Sequence[int], trainings: int) -> list[Job]:
    """The rungs of each fault in the first healthy trainings that it fits, and the repetitions of these trainings.

    Args:
        lines: of the recorded jobs.
        seeds: the drawn trainings among which to choose.
        trainings: the number of trainings of a fault.
    """
    healthy = [seed for seed in seeds if str(seed) in lines and is_healthy(lines[str(seed)])]
    chosen = {name: [seed for seed in healthy if mutator.fits(drawn(seed))][:trainings] for name, mutator in MUTATORS.items()}
    used = sorted({seed for each in chosen.values() for seed in each})
    repeats = [Job(seed, repeat=repeat) for seed in used for repeat in range(1, REPEATS + 1)]
    return repeats + [Job(seed, name, rung) for name, each in chosen.items() for seed in each for rung in range(RUNGS)]
