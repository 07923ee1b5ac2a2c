"""Fixed drawn trainings, of seeds that may set thresholds."""

from __future__ import annotations

from typing import Final

from benchmarks.trainings.fitting import Job

HEALTHY: Final = (Job(1), Job(2), Job(5), Job(7), Job(8), Job(9))
"""Healthy ones: a transformer, a recurrent network, a convolutional one, two contrastive ones and a graph network."""

FAULTY: Final = (Job(8, "rate-too-high", 4), Job(9, "cut-by-detach", 4), Job(5, "bad-batch", 4))
"""Faults in some of them, each of the worst severity."""
