"""What the project promises: the greatest ratios and the like, against which the report holds what was measured."""

from __future__ import annotations

from typing import Final

# (variant, kernel) to workload to the greatest ratio; the kernel is the one that is asked for.
RATIOS: Final[dict[tuple[str, str], dict[str, float]]] = {
    ("everything", "native"): {"A": 1.12, "B": 1.05, "C": 1.05, "D": 1.10},
    ("final", "native"): {"A": 1.20, "B": 1.08, "C": 1.08, "D": 1.20},
    ("everything", "reference"): {"A": 1.5, "B": 1.2, "C": 1.15, "D": 1.4},
    ("every100", "native"): {"A": 1.003, "B": 1.003, "C": 1.003, "D": 1.003},
    ("compiled", "native"): {"C": 1.10},
}
# Extra time with histograms over extra time without them.
HISTOGRAM_FACTOR: Final = 3.0
# Extra time of wandb.watch over ours, at least.
TIMES_LESS: Final[dict[str, float]] = {"A": 30.0, "B": 15.0, "C": 15.0, "D": 30.0}
# The kernel: share of the bandwidth of `sum` at 1e7 float32 elements, at least; nanoseconds of a call at 1e3, at most.
KERNEL_SHARE: Final = 0.7
KERNEL_CALL_NS: Final = 600.0
# The event: microseconds a value at a thousand values, at most.
EVENT_US: Final = 0.1
MEMORY_MB_PER_1000: Final = 1.0
# Transforms: their time over that of what stands beside them, at most.
TRANSFORMS: Final = {"ClipByGlobalNorm": 1.0, "AdaptiveClip": 0.5}
