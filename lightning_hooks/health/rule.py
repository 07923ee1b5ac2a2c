"""Health rule: a condition on the evidence, and the symptom that the condition holds at one row and step.

A rule reads the evidence and returns symptoms. `Diagnosis` does the rest: patience, warm-up, grouping and the end of a finding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from enum import StrEnum
from operator import index
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lightning_hooks.errors import RuleError, did_you_mean, shown
from lightning_hooks.health.criterion import Criterion
from lightning_hooks.health.row_names import shown_rows
from lightning_hooks.health.sighted import has_looked_for, sightings_in
from lightning_hooks.rules.statistics import check_statistic
from lightning_hooks.rules.tensors import MODULE_TENSORS, PARAM_TENSORS

if TYPE_CHECKING:
    from lightning_hooks.health.evidence import Evidence
    from lightning_hooks.health.track import Track
    from lightning_hooks.records.facts import Sighting, StepFacts
    from lightning_hooks.records.step_view import StepView

# A number of the whole step, and the values of `plan.rows.WHOLE`, repeated because the import of that module loads torch.
_OF_EVERY_STEP: Final = ("", "loss", "gradient", "batch")
FAMILIES = ("facts", "loss", "gradients", "updates", "activations", "numerics")
Kind = Literal["structure", "numbers", "pattern"]
"""What a rule states: a fact of structure (membership, modes, rates), a fact of numbers, or a pattern.

A pattern also occurs in healthy training. Its findings stand above `info` only if harm is measured in the run.
"""


class Severity(StrEnum):
    """How bad a finding is.

    `INFO` is only in the file and on the page, `WARNING` once in the terminal, and `CRITICAL` says that the training is lost if
    it goes on.

    Example:
        >>> Severity.WARNING, Severity("critical").rank > Severity.INFO.rank
        ('warning', True)
    """

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"

    def __repr__(self) -> str:
        return repr(self.value)

    def __str__(self) -> str:
        return self.value

    @property
    def rank(self) -> int:
        """0 for INFO, 1 for WARNING, 2 for CRITICAL."""
        return list(Severity).index(self)


def _as_text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return str(value)


_SYMPTOM_FIELDS: Final[tuple[tuple[str, type, Callable[[Any], object]], ...]] = (
    ("row", str, _as_text),
    ("tensor", str, _as_text),
    ("step", int, index),
    ("measured", float, float),
    ("threshold", float, float),
    ("text", str, _as_text),
    ("since", int, index),
)
_KIND_NAMES: Final[dict[type, str]] = {str: "a string", int: "an integer", float: "a number"}


@dataclass(frozen=True)
class Symptom:
    """The condition of a rule holds at one row and one step.

    Args:
        row: the name of the module or parameter; empty for the whole run.
        tensor: the tensor that was measured; empty for facts.
        step: the step at which the condition holds.
        measured: the number that was measured.
        threshold: the number that it was compared with.
        text: the numbers in words, without a full stop: `update is 18 % of the weight`.
        since: the step since which the pattern has been there, if that is before this symptom: a rule may wait for a second
            witness. None if the symptom is the beginning.
        is_fact: whether a rule on a pattern has seen what never is healthy, so that its finding needs no harm.
    """

    row: str
    _: KW_ONLY
    tensor: str
    step: int
    measured: float
    threshold: float
    text: str
    since: int | None = None
    is_fact: bool = False

    def __post_init__(self) -> None:
        """Convert numbers of NumPy, which JSON and checkpoints do not hold.

        Raises:
            RuleError: a field has another type.
        """
        for name, kind, convert in _SYMPTOM_FIELDS:
            value = getattr(self, name)
            if type(value) is kind or (name == "since" and value is None):
                continue
            try:
                object.__setattr__(self, name, convert(value))
            except (TypeError, ValueError):
                raise RuleError(f"symptom.{name} must be {_KIND_NAMES[kind]}, got {shown(value)}") from None

    @property
    def excess(self) -> float:
        """How far the measurement is from the threshold, as the absolute logarithm of their quotient; 0 where it has none."""
        if not (self.measured > 0 and self.threshold > 0):
            return math.inf if self.measured == 0 < self.threshold else 0.0
        return abs(math.log(self.measured) - math.log(self.threshold)) if math.isfinite(self.measured) else math.inf


@dataclass(frozen=True, kw_only=True)
class HealthRule(Criterion):
    """A condition that a healthy training does not meet.

    A rule inherits, is decorated with `@dataclass(frozen=True, kw_only=True)`, and has a `check`. Its own fields are its
    thresholds.

    Args:
        severity: of its findings, of a pattern once harm is measured.
        patience: the number of measured steps in a row at which the condition must hold, and then must not hold for the
            finding to end. Of symptoms without a tensor, each look without a symptom is one step.
        warmup: symptoms before this step do not count.
        every_n_steps: the rule looks after each so many steps. With more than 5 it looks half as often from step 200 on; with
            5 or less it looks at every step while its condition holds somewhere, but not yet for `patience` steps.
        enabled: whether the rule is used.

    Attributes:
        name: the name of the class.
        family: one of `FAMILIES`.
        kind: what the rule states, a `Kind`; of the family `facts` structure by default, else numbers. The findings of a
            pattern are `info` until harm is measured in the run while they stand, and then have the severity of the rule.
        needs: the pairs (tensor, statistic) that `check` reads. An empty tensor stands for a number of the whole step, by its
            tag: `("", "run/grad_norm")`. The loss is always there.
        obstacles: functions of the evidence, each of which says why the rule cannot run, or None if nothing stands in its way.
            `can_run` asks them in this order, before `needs`.
        needs_until: the last step at which the rule needs statistics that cost extra, such as `cosine`; None for all steps.
        needs_start: the tensors that must be measured at each of the first 25 steps of a run.
        looks_for: the kinds of sightings that `check` reads: what lookouts see of the code around the model.
        quotes: the kinds of sightings with which its text is more exact; the rule runs without them too.
        next_steps: what to try, as imperative sentences.
        source: where the thresholds are from.
        consequence: why a training with the fault is worse, for `lightning-hooks explain`.
        false_alarm: in which healthy trainings the condition may hold, and what is done about that.

    Example:
        >>> @dataclass(frozen=True, kw_only=True)
        ... class HugeOutput(HealthRule):
        ...     most: float = 1e3
        ...     patience: int = 3
        ...     family: ClassVar[str] = "activations"
        ...     needs: ClassVar[tuple[tuple[str, str], ...]] = (("output", "abs_max"),)
        ...
        ...     def check(self, evidence):
        ...         track = evidence.track("output", "abs_max")
        ...         is_huge = track.values > self.most
        ...         return symptoms_where(track, is_huge, self.most, lambda value: f"output reaches {value:.3g}")
        >>> HugeOutput(most=50)
        HugeOutput(severity='warning', patience=3, warmup=0, every_n_steps=20, enabled=True, most=50)
    """

    severity: Severity = Severity.WARNING
    patience: int = 10
    warmup: int = 0
    every_n_steps: int = 20
    enabled: bool = True
    name: ClassVar[str] = "HealthRule"
    family: ClassVar[str] = "numerics"
    kind: ClassVar[Kind] = "numbers"
    needs: ClassVar[tuple[tuple[str, str], ...]] = ()
    obstacles: ClassVar[tuple[Callable[[Evidence], str | None], ...]] = ()
    needs_until: ClassVar[int | None] = None
    needs_start: ClassVar[tuple[str, ...]] = ()
    looks_for: ClassVar[tuple[str, ...]] = ()
    quotes: ClassVar[tuple[str, ...]] = ()
    minima: ClassVar[Mapping[str, int]] = {"patience": 1, "warmup": 0, "every_n_steps": 1}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.family == "facts" and cls.kind == HealthRule.kind:
            cls.kind = "structure"
        if cls.family not in FAMILIES:
            raise RuleError(f"{cls.__name__}.family must be one of {', '.join(FAMILIES)}, got {shown(cls.family)}")
        if cls.kind not in get_args(Kind):
            raise RuleError(f"{cls.__name__}.kind must be one of {', '.join(get_args(Kind))}, got {shown(cls.kind)}")
        _check_needs(cls.needs, f"{cls.__name__}.needs")

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "severity", Severity(self.severity))
        except ValueError:
            hint = did_you_mean(self.severity, [each.value for each in Severity], n=1)
            raise RuleError(
                f"{self.name}.severity must be info, warning or critical, got {shown(self.severity)}{hint}"
            ) from None
        super().__post_init__()

    @property
    def looks_between(self) -> bool:
        """Whether the rule also looks at steps at which only the loss and the whole gradient are measured."""
        return self.family == "loss" or any(tensor in _OF_EVERY_STEP for tensor, _ in self.needs)

    def can_run(self, evidence: Evidence) -> str | None:
        """Why the rule cannot run with this evidence; None if it can.

        By default it can if none of its obstacles is there, something has looked for its sightings, and each pair of `needs`
        is there.
        """
        if self.looks_for and not has_looked_for(evidence, self.looks_for):
            return "nothing has looked at this part of the loop"
        for obstacle in self.obstacles:
            reason = obstacle(evidence)
            if reason is not None:
                return reason
        lacking = evidence.first_lacking(self.needs)
        return None if lacking is None else missing(evidence, *lacking)

    def can_skip(self, view: StepView) -> bool:
        """Whether this view shows by itself that the condition does not hold, so that the rule need not look at its step.

        It is asked before anything is read, which saves most of a look to a rule that looks at every step. It is not asked
        before the first look, nor while the condition holds somewhere or a finding of the rule is open.
        """
        return False

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        """The symptoms at new steps (`track.new`, `evidence.new_steps`). Changes neither the rule nor the evidence.

        By default those of the sightings in `looks_for`, at each step at which they hold.
        """
        if not self.looks_for:
            raise NotImplementedError(f"{self.name} has no check")
        return (
            symptom
            for step, sighting in sightings_in(evidence, self.looks_for)
            if self.counts(sighting, evidence.facts_at(step), evidence)
            for symptom in symptoms_of(sighting, step)
        )

    @property
    def only_sights(self) -> bool:
        """Whether sightings are all that the rule reads, so that it finds nothing where there is none."""
        return bool(self.looks_for) and type(self).check is HealthRule.check

    def counts(self, sighting: Sighting, facts: StepFacts | None, evidence: Evidence) -> bool:
        """Whether a sighting is told at the step of these facts; a rule may ask for a second witness."""
        return True

    def message(self, rows: Sequence[str], symptoms: Sequence[Symptom]) -> str:
        """What follows from a finding, in a sentence or two.

        Args:
            rows: the names of the rows, the earliest and worst first.
            symptoms: some of their symptoms, the clearest first; at least one.
        """
        where = shown_rows(rows)
        text = f"{where}: {symptoms[0].text}." if where else f"{symptoms[0].text}."
        # Do not capitalise a sentence that begins with the name of a module or parameter.
        return text if rows and rows[0] else f"{text[:1].upper()}{text[1:]}"


def symptoms_of(sighting: Sighting, step: int) -> Iterator[Symptom]:
    """A sighting as symptoms, one for each of its rows, with the line of code.

    Example:
        >>> from lightning_hooks.records.facts import Sighting
        >>> (symptom,) = symptoms_of(Sighting("kept", "a gradient is kept", line="train.py:31 in fit"), 4)
        >>> symptom.step, symptom.text
        (4, 'a gradient is kept (train.py:31 in fit)')
    """
    text = f"{sighting.text} ({sighting.line})" if sighting.line else sighting.text
    for row in sighting.rows or ("",):
        yield Symptom(
            row,
            tensor="",
            step=step,
            measured=sighting.measured,
            threshold=sighting.threshold,
            text=text,
            is_fact=sighting.is_fact,
        )


def _check_needs(needs: object, where: str) -> None:
    """Raise if needs are not pairs of names, or name a statistic that a tensor does not have."""
    pairs = needs if isinstance(needs, (tuple, list)) else (needs,)
    for pair in pairs:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not all(isinstance(each, str) for each in pair):
            raise RuleError(f"{where} must be a tuple of pairs (tensor, statistic), got {shown(needs)}")
        if pair[0] in (*MODULE_TENSORS, *PARAM_TENSORS) and pair[1] != "count":
            check_statistic(pair[1], [pair[0]], where)


def missing(evidence: Evidence, tensor: str, stat: str) -> str:
    """The reason why there is no track, in words."""
    if tensor == "":
        return f"no step reports `{stat}`"
    return f"`{stat}` of `{tensor}` is not measured" if tensor in evidence.tensors else f"no row has `{tensor}`"


def symptoms_where(
    track: Track,
    holds: NDArray[np.bool_],
    threshold: ArrayLike,
    text: Callable[[float], str],
    pattern: NDArray[np.bool_] | None = None,
    facts: NDArray[np.bool_] | None = None,
    before: Callable[[float], str] | None = None,
) -> Iterator[Symptom]:
    """The symptoms of a condition at the new steps of a track.

    Args:
        track: the statistic that was compared.
        holds: whether the condition holds, bool [window, rows]; ignored where the track was not measured.
        threshold: one number, or one for each row or cell: anything that broadcasts to [window, rows].
        text: makes the words from the measured number.
        pattern: the condition without its second witness, bool [window, rows]. The finding then begins with the pattern, not
            with the first symptom.
        facts: the rows at which the condition is a fact, bool [rows]; none by default.
        before: makes the words from the first number of the row in the window, with which that of a pattern is compared.
    """
    new = np.asarray(holds, dtype=np.bool_)[track.new] & ~np.isnan(track.values[track.new])
    if not new.any():
        return
    thresholds = np.broadcast_to(np.asarray(threshold, dtype=np.float64), track.values.shape)[track.new]
    values, steps = track.values[track.new], track.steps[track.new]
    for i, row in np.argwhere(new).tolist():
        value = float(values[i, row])
        since = None
        if pattern is not None and (i == 0 or not new[i - 1, row]):
            since = _begin(track, pattern, row, (track.new.start or 0) + i)
        yield Symptom(
            track.names[row],
            tensor=track.tensor,
            step=int(steps[i]),
            measured=value,
            threshold=float(thresholds[i, row]),
            text=text(value) + (_compared(track, row, int(steps[i]), before) if before is not None else ""),
            since=since,
            is_fact=facts is not None and bool(facts[row]),
        )


def _compared(track: Track, row: int, step: int, words: Callable[[float], str]) -> str:
    """The first number of a row in the window, in brackets; empty if it is that of this step."""
    first = int(np.isfinite(track.values[:, row]).argmax())
    value, begin = float(track.values[first, row]), int(track.steps[first])
    return f" (at step {begin}: {words(value)})" if begin < step and np.isfinite(value) else ""


def _begin(track: Track, pattern: NDArray[np.bool_], row: int, last: int) -> int:
    """The step since which a pattern has been there at each measured step of a row."""
    measured = np.flatnonzero(~np.isnan(track.values[: last + 1, row]))
    absent = np.flatnonzero(~np.asarray(pattern, dtype=np.bool_)[measured, row])
    begin = int(absent[-1]) + 1 if len(absent) else 0
    return int(track.steps[measured[min(begin, len(measured) - 1)]])
