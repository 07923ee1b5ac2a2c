"""The usual ranges of statistics, each from a published source. A statistic without a published range has none.

A range says where values of a healthy training usually are; it is no alarm. Published thresholds that most healthy trainings
break, such as a standard deviation of activations from 0.5 to 2, are not among them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class UsualRange:
    """Where the values of a statistic usually are.

    Args:
        stat: the name of the statistic.
        tensors: the tensors for which the range holds, without the prefix of a monitor; empty for all.
        low: the lower end of the range.
        high: the upper end of the range.
        typical: the value to aim at; None if the source names none.
        source: who published the range, and where.

    Example:
        >>> UsualRange("ratio", ("update",), 1e-4, 1e-1, 1e-3, "CS231n").typical
        0.001
    """

    stat: str
    tensors: tuple[str, ...]
    low: float
    high: float
    typical: float | None
    source: str


USUAL_RANGES: Final = (
    UsualRange(
        "ratio",
        ("update",),
        1e-4,
        1e-1,
        1e-3,
        "about 1e-3: CS231n, Neural Networks Part 3, “Ratio of weights:updates”; 1e-4 to 1e-1: TheDeepChecker (settings.yaml)",
    ),
    UsualRange(
        "run/update_ratio",
        (),
        1e-4,
        1e-1,
        1e-3,
        "about 1e-3: CS231n, Neural Networks Part 3, “Ratio of weights:updates”; 1e-4 to 1e-1: TheDeepChecker (settings.yaml)",
    ),
    UsualRange("zero_fraction", ("grad", "final_grad"), 0.0, 0.7, None, "below 0.7: AutoTrainer (ICSE 2021), dying ReLU"),
    UsualRange("dead_units", ("output",), 0.0, 0.5, None, "below 0.5: SageMaker Debugger, DeadRelu (threshold_layer)"),
)
