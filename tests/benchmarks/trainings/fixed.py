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
)
"""Faults in some of them that a rule names."""
