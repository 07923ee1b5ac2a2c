"""The rule on numbers that are not finite. An overflow that a loss scaler handles is no finding, nor is a mask of -inf."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple

import numpy as np

from lightning_hooks.comparing.exact import columns_of
from lightning_hooks.health.evidence import Evidence
from lightning_hooks.health.loss_line import LOSS_LINE
from lightning_hooks.health.roles import Mask, without_parametrizations
from lightning_hooks.health.rule import HealthRule, Severity, Symptom
from lightning_hooks.health.rules.base import Needs
from lightning_hooks.health.rules.rows_behind import ROWS_BEHIND, with_rows
from lightning_hooks.health.track import Track
from lightning_hooks.health.usage import has_scaler
from lightning_hooks.plan.rows import WHOLE
from lightning_hooks.records.step_view import StepView

_HALF_MAX: Final = 65504.0  # the largest finite float16
_MOST_ROWS: Final = 8  # rows of each tensor


class _Bad(NamedTuple):
    """Where a tensor is not finite.

    Args:
        track: the number of such elements.
        rows: bool [window, rows].
    """

    track: Track
    rows: Mask

    @property
    def measured(self) -> Mask:
        """The steps at which a row of the tensor was measured, bool [window]."""
        is_measured: Mask = np.any(~np.isnan(self.track.values), axis=1)
        return is_measured

    def are_finite(self, step: int) -> bool:
        """Whether the tensor was measured at a step of the window, and all its rows were finite there."""
        return not np.isnan(self.track.values[step]).all() and not self.rows[step].any()


@dataclass(frozen=True, kw_only=True)
class NonFinite(HealthRule):
    """The loss, a parameter, or a gradient that an optimizer uses is not finite.

    A gradient that is not finite and that changes no parameter was skipped on purpose, by a loss scaler or by a rule of the
    user. Under a loss scaler it is a fault only if the scale cannot be the reason: at `overflows` steps in a row, while all
    finite gradients, multiplied by the scale, are far below what float16 holds. NaN in an output is told where one of these is
    bad as well; infinities of outputs are usual (masks).

    Args:
        overflows: the number of steps in a row at which a scaler is expected to find another scale.
        headroom: how far below the largest float16 the finite gradients then are.
    """

    severity: Severity = Severity.CRITICAL
    patience: int = 1
    every_n_steps: int = 1
    overflows: int = 4
    headroom: float = 1e2
    family: ClassVar[str] = "numerics"
    needs: ClassVar[Needs] = (
        ("", "run/nonfinite"),
        ("loss", "nonfinite"),
        ("param", "nonfinite"),
        ("grad", "nonfinite"),
        ("update", "nonfinite"),
        ("grad", "abs_max"),
        ("output", "nonfinite"),
        ("output", "max"),
        ("input", "nonfinite"),
        ("gradient", "nonfinite"),
        ("batch", "nonfinite"),
    )
    quotes: ClassVar[tuple[str, ...]] = (*ROWS_BEHIND, *LOSS_LINE)
    next_steps: ClassVar[tuple[str, ...]] = (
        "If losses or updates grew over the steps before, lower the learning rate; else look at the row that is named first: a "
        "logarithm or root of 0, a division by 0, the exponential of a large number.",
        "Look at the batch of this step for values that are not finite.",
        "Resume from a checkpoint before this step; weights that are not finite never recover.",
    )
    source: ClassVar[str] = "one such number counts, as in tfdbg2 and Megatron, unless a loss scaler has skipped the step"
    consequence: ClassVar[str] = (
        "A weight that is NaN or infinite never recovers, and makes every later output and loss NaN too."
    )
    false_alarm: ClassVar[str] = (
        "Gradients that a loss scaler or your own code skips are not told. A batch that marks gaps with NaN is told only if "
        "the loss or a weight is bad as well."
    )

    def can_run(self, evidence: Evidence) -> str | None:
        rows = {"loss", "param", "grad"}.intersection(evidence.tensors)
        return None if rows else "no row has `loss`, `param` or `grad`"

    def can_skip(self, view: StepView) -> bool:
        # Nothing that was measured at this step is NaN or infinite.
        return view.summaries.get("run/nonfinite") == 0

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        total = evidence.track("", "run/nonfinite")
        if total is not None and bool((total.values[total.new] == 0).all()):
            return
        bad = {tensor: found for tensor in ("loss", "param") if (found := _bad(evidence, tensor)) is not None}
        grad = _bad(evidence, "grad")
        if grad is not None:
            bad["grad"] = grad._replace(rows=self._faulty(evidence, grad))
        if not bad:
            return
        alarm: Mask = np.any([found.rows.any(axis=1) for found in bad.values()], axis=0)
        steps, new = evidence.steps, next(iter(bad.values())).track.new
        if not alarm[new].any():
            return
        # A step at which nothing was measured that could be bad neither begins nor ends anything.
        whole = _bad(evidence, "gradient")
        known = np.flatnonzero(np.any([found.measured for found in bad.values()], axis=0))
        for begin, end in ((known[first], known[last - 1] + 1) for first, last in _runs(alarm[known])):
            if end <= new.start:
                continue
            since = self._since(evidence, whole, begin)
            symptoms = []
            # Once the first bad step has left the window, the rows that were bad there are known from the finding alone.
            has_left = begin == known[0] and not evidence.holds_start
            places = list(self._standing(evidence, bad, begin)) if has_left else []
            for tensor, column, counts in places or self._origins(evidence, bad, begin):
                for i in range(max(begin, new.start), end):
                    if counts.rows[i, column]:
                        count = float(counts.track.values[i, column])
                        name = counts.track.names[column]
                        row = "" if counts.track.tensor in WHOLE else name
                        is_loss_alone = any(each is not None and each.are_finite(i) for each in (grad, whole))
                        symptoms.append(
                            Symptom(
                                row,
                                tensor=tensor,
                                step=int(steps[i]),
                                measured=count,
                                threshold=0.0,
                                text=_text(counts.track.tensor if row == "" else tensor, count, is_loss_alone),
                                since=since,
                            )
                        )
            first = int(steps[begin])
            quoted = min((each for each in symptoms if each.step == first), key=lambda each: each.row, default=None)
            yield from with_rows(symptoms, quoted, evidence, first if since is None else since)

    def _since(self, evidence: Evidence, whole: _Bad | None, begin: int) -> int | None:
        """The step at which the whole gradient was the first to be bad, where that led to what is bad now; None if none was.

        A loss scaler skips steps with such gradients, so under one they lead to nothing.
        """
        if whole is None or has_scaler(evidence.facts):
            return None
        first = begin
        while first > 0 and whole.rows[first - 1].any():
            first -= 1
        return int(evidence.steps[first]) if first < begin else None

    def _standing(self, evidence: Evidence, bad: dict[str, _Bad], step: int) -> Iterator[tuple[str, int, _Bad]]:
        """The rows at which a finding stands and that are bad at a step, as (tensor, column, where it is bad)."""
        for row, tensor in sorted(evidence.standing_places):
            others = ("input", "output", "batch") if tensor == "input" else (tensor,)
            for found in (bad.get(each) or _bad(evidence, each) for each in others):
                names = () if found is None else found.track.names
                column = 0 if names and not row else names.index(row) if row in names else -1
                if found is not None and column >= 0 and found.rows[step, column]:
                    yield tensor, column, found
                    break

    def _origins(self, evidence: Evidence, bad: dict[str, _Bad], step: int) -> Iterator[tuple[str, int, _Bad]]:
        """The rows that were bad at the first bad step, as (tensor, column, where it is bad); those of activations last."""
        for tensor, found in bad.items():
            columns = np.flatnonzero(found.rows[step])
            if tensor == "grad" and len(columns) > 1:
                # A gradient runs backwards, so the parameter of the last module that ran is nearest to the origin.
                position = {name: i for i, name in enumerate(evidence.order)}
                places = [position.get(found.track.names[c].rpartition(".")[0], -1) for c in columns.tolist()]
                columns = columns[np.argsort(places, kind="stable")[::-1]]
            yield from ((tensor, column, found) for column in columns[:_MOST_ROWS].tolist())
        order = {name: i for i, name in enumerate(without_parametrizations(evidence.order))}
        first = len(order)
        output, largest = _bad(evidence, "output"), evidence.track("output", "max")
        if output is not None and largest is not None:
            is_nan = output._replace(rows=output.rows & np.isnan(largest.values))
            found_at = np.flatnonzero(is_nan.rows[step]).tolist()
            if found_at:
                column = min(found_at, key=lambda c: order.get(output.track.names[c], first))
                first = order.get(output.track.names[column], first)
                yield "output", column, is_nan
            yield from self._of_batch(evidence, bad, output, order, step)
            measured = ~np.isnan(output.track.values[step]).all()
        else:
            measured = False
        batch = _bad(evidence, "batch")
        # At a step between those of rows, only the batch itself tells. A batch that is masked by NaN has always held some.
        if not measured and batch is not None and batch.rows[step].any() and not batch.rows[:step].any():
            yield "input", 0, batch
        inputs = _bad(evidence, "input")
        if inputs is not None and len(inputs.rows) > step:
            at_first = [c for c in np.flatnonzero(inputs.rows[step]).tolist() if order.get(inputs.track.names[c], -1) == 0]
            yield from (("input", column, inputs) for column in at_first)

    def _of_batch(
        self, evidence: Evidence, bad: dict[str, _Bad], output: _Bad, order: Mapping[str, int], step: int
    ) -> Iterator[tuple[str, int, _Bad]]:
        """The output of the first module if it is not finite although all weights are: then the batch is not."""
        if "param" in bad and bad["param"].rows[step].any():
            return
        for column in np.flatnonzero(output.rows[step]).tolist():
            if order.get(output.track.names[column], -1) == 0:
                yield "input", column, output

    def _faulty(self, evidence: Evidence, grad: _Bad) -> Mask:
        """At which steps and rows a gradient that is not finite is a fault, bool [window, rows]."""
        update = _bad(evidence, "update")
        if update is None:
            used = np.zeros_like(grad.rows)
        else:
            columns = columns_of(update.track.names, grad.track.names)
            used = np.where(columns >= 0, update.rows[:, columns], False)
        faulty: Mask = grad.rows & (used | self._beyond_scaling(evidence, grad))
        return faulty

    def _beyond_scaling(self, evidence: Evidence, grad: _Bad) -> Mask:
        """Gradients that no loss scale would make finite, bool [window, rows]."""
        found = np.zeros_like(grad.rows)
        largest = evidence.track("grad", "abs_max")
        if largest is None or not has_scaler(evidence.facts):
            return found
        steps = grad.track.steps.tolist()
        measured = np.flatnonzero(grad.measured).tolist()
        for i in np.flatnonzero(grad.rows.any(axis=1)).tolist():
            last = measured[: measured.index(i) + 1][-self.overflows :]
            if len(last) < self.overflows:
                continue
            at_step = evidence.facts_at(steps[i])
            scale = at_step.loss_scale if at_step is not None and at_step.loss_scale is not None else 1.0
            finite = np.where(np.isfinite(largest.values[i]), largest.values[i], 0.0)
            is_far = finite.any() and finite.max() * scale < _HALF_MAX / self.headroom
            if is_far or scale <= 1.0:
                found[i] = grad.rows[last].all(axis=0)
        return found


def _bad(evidence: Evidence, tensor: str) -> _Bad | None:
    track = evidence.track(tensor, "nonfinite")
    if track is None:
        return None
    with np.errstate(invalid="ignore"):
        return _Bad(track, track.values > 0)


def _runs(holds: Mask) -> Iterator[tuple[int, int]]:
    """The begin and end of each run of True.

    Example:
        >>> list(_runs(np.array([True, False, True, True])))
        [(0, 1), (2, 4)]
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[False], holds, [False]]).astype(np.int8)))
    yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)


def _text(tensor: str, count: float, is_loss_alone: bool) -> str:
    if tensor == "loss":
        return "the loss is not finite" + ", although all gradients are" * is_loss_alone
    what = {
        "param": "weight",
        "grad": "gradient",
        "output": "output (the first in order of execution)",
        "input": "first module's output, whose weights are finite,",
        "batch": "batch",
    }[tensor]
    return f"{int(count)} elements of the {what} are not finite"


RULES: Final[tuple[HealthRule, ...]] = (NonFinite(),)
"""The rules on numbers that are not finite, with their defaults."""
