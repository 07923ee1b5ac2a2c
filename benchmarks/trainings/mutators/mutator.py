"""Mutator: a fault that can be put into a drawn training, with a ladder of five severities."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lightning.pytorch import LightningModule
from torch import Tensor

from benchmarks.trainings.mutators.answers import ANSWERS, Answer
from benchmarks.trainings.optimizers import OPTIMIZERS, is_manual
from benchmarks.trainings.spec import Spec
from galleries.health.training import Case

RUNGS = 5


class Planted(NamedTuple):
    """A case with a fault.

    Args:
        case: the case.
        rows: globs of the names of modules and parameters at any of which the fault must be seen; empty if it has no place.
        entering: what the fault does to inputs, so that the model is measured on such as it has learned.
        leaving: what undoes the fault in predictions.
    """

    case: Case
    rows: tuple[str, ...] = ()
    entering: Callable[[Tensor], Tensor] | None = None
    leaving: Callable[[Tensor], Tensor] | None = None


def _same_spec(spec: Spec, severity: float) -> Spec:
    return spec


def _same_case(case: Case, spec: Spec, severity: float) -> Planted:
    return Planted(case)


def _always(spec: Spec) -> bool:
    return True


def is_usual(spec: Spec) -> bool:
    """Whether Lightning takes the steps of one optimizer, each from one batch, and no layer is trained only later."""
    is_late = "unfrozen-first" in spec.tricks or spec.family == "finetuning"
    return not (is_manual(spec) or OPTIMIZERS[spec.optimizer].whole or is_late)


def after(module: LightningModule, hook: str, function: Callable[..., Any]) -> None:
    """Call a function whenever a hook of Lightning has run, with its arguments. Tricks have hooks of their own.

    Args:
        module: that has the hook.
        hook: the name of a method that returns nothing, as `on_train_batch_end`.
        function: what to call.
    """
    own = getattr(module, hook)

    def both(*args: Any, **options: Any) -> None:
        own(*args, **options)
        function(*args, **options)

    setattr(module, hook, both)


@dataclass(frozen=True)
class Mutator:
    """A fault. What must be said of it stands in `answers.py`, under its name.

    Args:
        name: in kebab case.
        doc: what is wrong, in one sentence.
        rungs: five severities, the mildest first.
        change: the spec of the faulty training.
        plant: the fault in a case.
        fits: whether a training can have the fault.
        onset: the share of the training after which the fault begins.
    """

    name: str
    doc: str
    rungs: tuple[float, float, float, float, float]
    change: Callable[[Spec, float], Spec] = _same_spec
    plant: Callable[[Case, Spec, float], Planted] = _same_case
    fits: Callable[[Spec], bool] = field(default=_always)
    onset: float = 0.0

    @property
    def answer(self) -> Answer:
        """What must change, and what names the fault."""
        return ANSWERS[self.name]

    @property
    def is_visible(self) -> bool:
        """Whether the protocol names a row or fact that must change."""
        return bool(self.answer.shows)

    def onset_step(self, spec: Spec) -> int:
        """The step at which the fault begins."""
        return int(self.onset * spec.steps)


def by_name(mutators: tuple[Mutator, ...]) -> Mapping[str, Mutator]:
    """Mutators by their names.

    Raises:
        ValueError: two have one name.
    """
    named = {each.name: each for each in mutators}
    if len(named) < len(mutators):
        raise ValueError("two mutators have one name")
    return named
