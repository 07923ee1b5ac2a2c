"""Fits one job: a training of a seed as it was drawn, repeated, with another rate, or with a fault of some severity."""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from lightning.pytorch import Callback

from benchmarks.trainings.draw import drawn, made
from benchmarks.trainings.families import FAMILIES
from benchmarks.trainings.mutators import MUTATORS, Planted
from benchmarks.trainings.spec import Spec
from galleries.health.training import Training, fit

REPEATS: Final = 5
"""Unmutated repetitions, whose measures are the spread that a harmful rung leaves."""


@dataclass(frozen=True)
class Job:
    """One fit to record or to measure.

    Args:
        seed: of the training.
        fault: the name of a mutator; empty for none.
        rung: of its ladder, from 0.
        repeat: the number of the repetition; 0 is the drawn training itself.

    Example:
        >>> Job(7).key, Job(7, repeat=2).key, Job(7, "rate-too-high", 4).key
        ('7', '7+2', '7-rate-too-high-4')
    """

    seed: int
    fault: str = ""
    rung: int = 0
    repeat: int = 0

    @property
    def key(self) -> str:
        """The name of the job in files."""
        fault = f"-{self.fault}-{self.rung}" if self.fault else ""
        return f"{self.seed}{f'+{self.repeat}' if self.repeat else ''}{fault}"


@dataclass(frozen=True)
class Fitted:
    """A finished fit.

    Args:
        spec: what was fitted.
        rows: globs of the names at any of which a fault must be seen.
        value: its measure.
        error: the error that ended it; empty if there was none.
    """

    spec: Spec
    rows: tuple[str, ...]
    value: float
    error: str


def spec_of(job: Job) -> Spec:
    """The spec of a job, with its fault as far as the fault is in the spec."""
    spec = replace(drawn(job.seed), repeat=job.repeat)
    if not job.fault:
        return spec
    mutator = MUTATORS[job.fault]
    return mutator.change(spec, mutator.rungs[job.rung])


def fitted(spec: Spec, folder: Path, callbacks: Sequence[Callback] = (), job: Job | None = None) -> Fitted:
    """Fit a spec on the CPU.

    Args:
        spec: what to fit.
        folder: for files of the Trainer.
        callbacks: of the Trainer.
        job: whose fault to plant; None for none.

    Raises:
        TimeoutError: the fit takes too long. That says nothing of the training, so it is no error of the fit.
    """
    mutator = MUTATORS[job.fault] if job is not None and job.fault else None
    planted = Planted(made(spec))
    if mutator is not None and job is not None:
        planted = mutator.plant(planted.case, spec, mutator.rungs[job.rung])
    training = Training(str(spec.seed), spec.family, lambda seed: planted.case, spec.steps, "", None, "")
    error = ""
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        try:
            fit(training, spec.seed, [*callbacks], folder)
        except TimeoutError:
            raise
        except Exception as failure:
            error = f"{type(failure).__name__}: {failure}"
    return Fitted(spec, planted.rows, float("-inf") if error else _measured(planted, spec), error)


def _measured(planted: Planted, spec: Spec) -> float:
    module, entering, leaving = planted.case.module, planted.entering, planted.leaving

    def before(_: Any, args: tuple[Any, ...]) -> Any:
        return None if entering is None else (entering(args[0]), *args[1:])

    def after(_: Any, args: tuple[Any, ...], output: Any) -> Any:
        return None if leaving is None else leaving(output)

    handles = [module.register_forward_pre_hook(before), module.register_forward_hook(after)]
    try:
        return FAMILIES[spec.family].measure(module, spec)
    finally:
        for handle in handles:
            handle.remove()
