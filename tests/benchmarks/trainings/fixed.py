"""Fixed drawn trainings, of seeds that may set thresholds."""

from __future__ import annotations

from typing import Final

from benchmarks.trainings.fitting import Job

HEALTHY: Final = (Job(12), Job(25), Job(0), Job(32), Job(9), Job(35))
"""Healthy ones: a transformer, a recurrent network, a convolutional one, a contrastive one, a flow and a ranking."""

FAULTY: Final = (Job(25, "rate-too-high", 4), Job(9, "cut-by-detach", 4), Job(0, "bad-batch", 4))
"""Faults in some of them, each of the worst severity."""
