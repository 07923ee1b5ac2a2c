"""Mutator: a fault that can be put into a drawn training, with a ladder of five severities."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from torch import Tensor

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


@dataclass(frozen=True)
class Mutator:
    """A fault.

    Args:
        name: in kebab case.
        doc: what is wrong, in one sentence.
        kind: "fact" if structure, membership or a number that is not finite shows it, "pattern" if numbers do.
        rungs: five severities, the mildest first.
        rules: the names of rules any of which names it.
        causes: the names of the right causes; empty if none of today's is.
        shows: the tensor and the statistic, or "fact" and a field of `StepFacts`, that must change; empty if nothing that is
            measured today must.
        change: the spec of the faulty training.
        plant: the fault in a case.
        fits: whether a training can have the fault.
        onset: the share of the training after which the fault begins.
    """

    name: str
    doc: str
    kind: Literal["fact", "pattern"]
    rungs: tuple[float, float, float, float, float]
    rules: tuple[str, ...]
    causes: tuple[str, ...] = ()
    shows: tuple[str, str] | tuple[()] = ()
    change: Callable[[Spec, float], Spec] = _same_spec
    plant: Callable[[Case, Spec, float], Planted] = _same_case
    fits: Callable[[Spec], bool] = field(default=_always)
    onset: float = 0.0

    @property
    def is_visible(self) -> bool:
        """Whether the protocol names a row or fact that must change."""
        return bool(self.shows)

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
