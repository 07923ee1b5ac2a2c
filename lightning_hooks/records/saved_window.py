"""The steps of a window as JSON in the event file of a run; `tensorboard/saved_windows.py` reads them."""

from __future__ import annotations

import json
import math

from lightning_hooks.records.step_view import StepWindow


def to_text(window: StepWindow) -> str:
    """The text in the event of the last step of a window. The table beside it has the number of steps of each row.

    Example:
        >>> to_text(StepWindow(4, count=4, extremes={"run/loss": (0.5, 2.0)}))
        '{"first": 4, "count": 4, "extremes": {"run/loss": [0.5, 2.0]}}'
    """
    extremes = {tag: [_finite(low), _finite(high)] for tag, (low, high) in window.extremes.items()}
    return json.dumps({"first": window.first, "count": window.count, "extremes": extremes})


def _finite(value: float) -> float | str:
    """The number, or its name where JSON has no number for it."""
    return value if math.isfinite(value) else str(value)
