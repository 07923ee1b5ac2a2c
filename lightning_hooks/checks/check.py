"""`Check`: the base of all checks, and how one says what it found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from lightning_hooks.checks.result import CheckResult, Status
from lightning_hooks.errors import listed
from lightning_hooks.health.criterion import Criterion
from lightning_hooks.health.row_names import user_names

if TYPE_CHECKING:
    from lightning_hooks.checks.trial import Trial


@dataclass(frozen=True, kw_only=True)
class Check(Criterion):
    """A property of a training that one batch shows.

    A check inherits, is decorated with `@dataclass(frozen=True, kw_only=True)`, and has a `run`. Its own fields are its
    thresholds. It may do what it likes with the model: all of it is restored afterwards.

    Args:
        enabled: whether the check is used.

    Attributes:
        name: the name of the class.
        probes: the fields of the record of a step that the check reads, by which a trial knows what to measure: names of
            `Record`, such as `losses`, `grads` or `layers`.
        needs: what the check cannot do without: `loss`, `optimizer`. Without it the check is skipped.
        next_steps: what to try, as imperative sentences.
        source: where the thresholds are from.
        consequence: why a training with the fault is worse, for `lightning-hooks explain`.
        false_alarm: in which healthy trainings the condition may hold, and what is done about that.
        settled_by: by an entry of `next_steps`, the check whose pass makes it needless.
        not_shown: what one batch cannot show of this fault, as a clause without a full stop, if a health rule of the same name
            looks for it during the run.

    Example:
        >>> @dataclass(frozen=True, kw_only=True)
        ... class OutputIsSmall(Check):
        ...     most: float = 100.0
        ...     probes = ("layers",)
        ...
        ...     def run(self, trial):
        ...         large = [each for each in trial.step.layers if each.output_max > self.most]
        ...         if not large:
        ...             return self.passed("no output is large")
        ...         text = f"an output reaches {large[0].output_max:.3g}"
        ...         return self.warned([each.name for each in large], text, large[0].output_max, self.most)
        >>> OutputIsSmall(most=50)
        OutputIsSmall(enabled=True, most=50)
    """

    enabled: bool = True
    name: ClassVar[str] = "Check"
    probes: ClassVar[tuple[str, ...]] = ()
    needs: ClassVar[tuple[str, ...]] = ()
    settled_by: ClassVar[Mapping[str, str]] = {}
    not_shown: ClassVar[str] = ""

    def run(self, trial: Trial) -> CheckResult:
        """Look at the trial and return a result, made by `passed`, `warned`, `failed` or `skipped`."""
        raise NotImplementedError(f"{self.name} has no run")

    def passed(self, message: str, measured: float | None = None, threshold: float | None = None) -> CheckResult:
        """The result of a check that found no fault."""
        return self._result("pass", (), message, measured, threshold)

    def skipped(self, reason: str) -> CheckResult:
        """The result of a check that could not know.

        Args:
            reason: why, as a clause without a full stop.
        """
        return self._result("skip", (), reason, None, None)

    def warned(
        self,
        rows: Sequence[str],
        message: str,
        measured: float | None = None,
        threshold: float | None = None,
        *,
        next_steps: Sequence[str] | None = None,
    ) -> CheckResult:
        """The result of a check that found something which may be meant.

        Args:
            rows: the names of modules, parameters or inputs, the worst first; empty names are left out.
            message: what was found about them; their names are put in front.
            measured: the number that decided.
            threshold: the number that it was compared with.
            next_steps: what to try, if that is less or other than what the check always says.
        """
        return self._result("warn", rows, message, measured, threshold, next_steps)

    def failed(
        self,
        rows: Sequence[str],
        message: str,
        measured: float | None = None,
        threshold: float | None = None,
        *,
        next_steps: Sequence[str] | None = None,
    ) -> CheckResult:
        """The result of a check that found a fault; arguments as of `warned`."""
        return self._result("fail", rows, message, measured, threshold, next_steps)

    def _result(
        self,
        status: Status,
        rows: Sequence[str],
        message: str,
        measured: float | None,
        threshold: float | None,
        advice: Sequence[str] | None = None,
    ) -> CheckResult:
        names = tuple(dict.fromkeys(row for row in rows if row))
        text = f"{listed(user_names(names), 3)}: {message}" if names else message
        next_steps = tuple(self.next_steps if advice is None else advice) if status in ("warn", "fail") else ()
        return CheckResult(
            self.name, status=status, rows=names, message=text, measured=measured, threshold=threshold, next_steps=next_steps
        )
