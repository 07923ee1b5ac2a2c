"""Records a job: the step views of its fit in a file, and one line of plain values on how it went."""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from lightning.pytorch import Callback

from benchmarks.trainings.families import FAMILIES
from benchmarks.trainings.fitting import Fitted, Job, fitted, spec_of
from benchmarks.trainings.mutators import MUTATORS
from benchmarks.trainings.source import source_of
from lightning_hooks import HealthMonitor, StatsMonitor
from lightning_hooks.codec import encode
from lightning_hooks.records.consumer import StepConsumer
from lightning_hooks.records.saved_views import write_views
from lightning_hooks.records.step_view import StepView

OTHER_RATES: Final = (0.1, 10.0)
MUCH_BETTER: Final = 0.2
"""A rate does much better if the measure it leads to is larger by more than this."""
LONGEST: Final = 180
"""Seconds after which a job ends with an error."""


class Kept(StepConsumer):
    """Keeps the views of training."""

    def __init__(self) -> None:
        self.views: list[StepView] = []

    def consume(self, view: StepView) -> None:
        if view.stage == "train":
            self.views.append(view)


def monitors(kept: Kept, health: HealthMonitor | None = None) -> list[Callback]:
    """A monitor of every row at every step, whose views are kept, and one that diagnoses them."""
    return [StatsMonitor(loggers=[], consumers=[kept]), health or HealthMonitor()]


def record(job: Job, folder: Path) -> dict[str, Any]:
    """Fit a job, write its views, and return its line. A failure of any kind is the `error` of the line."""
    start = time.process_time()
    line: dict[str, Any] = {"key": job.key, "seed": job.seed, "fault": job.fault, "rung": job.rung, "repeat": job.repeat}
    try:
        with _limited(LONGEST), tempfile.TemporaryDirectory() as scratch:
            spec = spec_of(job)
            line |= {"family": spec.family, "tricks": spec.tricks, "spec": repr(spec), "steps": spec.steps}
            line["source"] = source_of(spec.family, job.fault)
            line |= _recorded(job, folder, Path(scratch))
    except Exception as failure:
        line["error"] = f"{type(failure).__name__}: {failure}"
    return encode({**line, "seconds": round(time.process_time() - start, 2)})


def _recorded(job: Job, folder: Path, scratch: Path) -> dict[str, Any]:
    spec = spec_of(job)
    if job.repeat:
        return _shown(fitted(spec, scratch))
    kept = Kept()
    result = fitted(spec, scratch, monitors(kept), job)
    line = _shown(result)
    if kept.views:
        views = folder / f"{job.key}.views"
        write_views(views, kept.views)
        line |= {"views": views.name, "bytes": views.stat().st_size}
    if job.fault:
        return {**line, "rows": result.rows, "onset": MUTATORS[job.fault].onset_step(spec)}
    bar = FAMILIES[spec.family].bar
    others = []
    if not result.error and result.value >= bar:
        others = [fitted(replace(spec, rate=spec.rate * factor), scratch).value for factor in OTHER_RATES]
    return {**line, "bar": bar, "other_rates": others, "discarded": discarded(result.value, bar, others)}


def discarded(value: float, bar: float, others: list[float]) -> str:
    """Why a training is not one of the healthy ones; empty if it is one.

    Args:
        value: its measure.
        bar: of its family.
        others: the measures with other rates.

    Example:
        >>> discarded(0.3, 0.4, []), discarded(0.5, 0.4, [0.1, 0.9]), discarded(0.8, 0.4, [0.1, 0.9])
        ('below the bar', 'another rate does much better', '')
    """
    if not value >= bar:
        return "below the bar"
    return "another rate does much better" if max(others, default=value) > value + MUCH_BETTER else ""


def _shown(result: Fitted) -> dict[str, Any]:
    return {"value": result.value, "error": result.error}


@contextmanager
def _limited(seconds: int) -> Iterator[None]:
    """Raise a TimeoutError in the main thread of this process after some seconds."""

    def raise_timeout(*_: Any) -> None:
        raise TimeoutError(f"it took longer than {seconds} s")

    previous = signal.signal(signal.SIGALRM, raise_timeout)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
