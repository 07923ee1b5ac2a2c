"""What the project promises: the greatest ratios and the like, against which the report holds what was measured."""

from __future__ import annotations

from typing import Final

# (variant, kernel) to workload to the greatest ratio; the kernel is the one that is asked for.
RATIOS: Final[dict[tuple[str, str], dict[str, float]]] = {
    ("everything", "native"): {"A": 1.13, "B": 1.05, "C": 1.05, "D": 1.11},
    ("final", "native"): {"A": 1.20, "B": 1.08, "C": 1.08, "D": 1.20},
    ("compiled", "native"): {"C": 1.10},
}
# The steps between watched ones, where only some are.
UNWATCHED: Final = 1.005
# What the reports of transforms take, as a share of the step.
REPORTS: Final = 0.02
# What a monitor and other readers of its tensors take together, over the sum of what each takes alone.
READERS: Final = 1.0
# The health rules, over the step: their diagnosis beside a monitor of the same rows; alone, on a step of some milliseconds and
# on longer ones; and the units of all outputs at every tenth step over everything without units.
HEALTH_BESIDE: Final = 1.01
HEALTH_ALONE: Final[dict[str, float]] = {"A": 1.12, "B": 1.04, "C": 1.04, "D": 1.04}
UNITS: Final[dict[str, float]] = {"B": 1.01, "C": 1.01, "D": 1.01}
# How far `run/overhead` may be from the measured share of the step.
OVERHEAD: Final = 0.02
# The histograms that are measured by default, at every fiftieth step, over the same monitor without them. On every workload.
DEFAULT_HISTOGRAMS: Final = 1.01
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

# On an H200: the greatest ratio of everything at every step; that of the mean step with the units of all outputs at every tenth
# step, over everything without units; and the least share of the bandwidth of a copy, from so many MB on.
GPU_RATIOS: Final[dict[str, float]] = {"A": 1.03, "D": 1.20, "G": 1.10}
GPU_HEALTH_BESIDE: Final = 1.02
GPU_KERNEL_SHARE: Final = 0.7
GPU_LARGE_MB: Final = 100.0

# The flight recorder, over the step: beside a monitor that watches everything, and alone. On every workload.
RECORDER_BESIDE: Final = 1.01
RECORDER_ALONE: Final = 1.03

# Mean steps of whole fits over those with a `StatsMonitor()`: with a `HealthMonitor()` beside it, which notes every call of a
# layer, and with a `FlightRecorder()` too; and of a `HealthMonitor()` alone, over no callback.
WHOLE_FITS: Final[dict[str, dict[str, float]]] = {
    "with `HealthMonitor()`": {"A": 1.08, "B": 1.04, "C": 1.04, "D": 1.04},
    "with `FlightRecorder()` too": {"A": 1.08, "B": 1.04, "C": 1.04, "D": 1.04},
    "`HealthMonitor()` alone": {"A": 1.20, "B": 1.06, "C": 1.06, "D": 1.06},
}
