"""Fixed drawn trainings, of seeds that may set thresholds, which take about a second of CPU each."""

from __future__ import annotations

from typing import Final

from benchmarks.trainings.fitting import Job

HEALTHY: Final = tuple(map(Job, (0, 2, 4, 8, 9, 12, 13, 15, 16, 17, 21, 22, 25, 27, 28, 32, 35, 36, 41, 42)))
"""Healthy ones of fourteen families."""

FAULTY: Final = (
    Job(25, "rate-too-high", 4),
    Job(9, "cut-by-detach", 4),
    Job(0, "bad-batch", 4),
    Job(9, "rate-too-high", 4),
    Job(25, "rate-too-low", 4),
    Job(25, "rate-rises-late", 3),
    Job(9, "forgotten-part", 4),
    Job(27, "forgotten-part", 2),
    Job(15, "bad-batch", 3),
    Job(15, "numbers-missing", 4),
    Job(21, "columns-blank", 4),
    Job(42, "sum-for-mean", 4),
    Job(27, "logarithm-of-zero", 4),
    Job(32, "dropout-too-high", 4),
)
"""Faults in some of them that a rule names."""

UNNAMED: Final = (
    Job(25, "recurrence-amplifies", 4),
    Job(42, "weights-too-large", 4),
    Job(15, "decay-too-large", 4),
    Job(27, "sign-turned", 4),
    Job(9, "cleared-before-step", 4),
)
"""Faults that no right rule names yet. They must be judged alike from a file all the same."""
