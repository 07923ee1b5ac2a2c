"""Judges recorded step views as the fit itself was judged: the same diagnosis, the same telling."""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import lightning_hooks.health as health
from benchmarks.trainings.mutators import MUTATORS
from benchmarks.trainings.shown import changed_at
from galleries.rules import HEALTH
from lightning_hooks.codec import encode
from lightning_hooks.health.actions import Actions
from lightning_hooks.health.engine import Diagnosis
from lightning_hooks.health.finding import Cause, Finding
from lightning_hooks.health.reference.causes import CAUSES_WITH_REFERENCE
from lightning_hooks.health.reporter import Reporter
from lightning_hooks.health.rules.reading import as_health_rules
from lightning_hooks.health.telling import Outlet
from lightning_hooks.health.text import Block, as_text
from lightning_hooks.plan.rows import LOSS
from lightning_hooks.records.saved_views import read_views
from lightning_hooks.records.step_view import StepView

DIVERGED: Final = 3.0
"""A loss has diverged if it stays above this multiple of the loss of step 0, or is not finite."""
_STAYS: Final = 5  # steps


def code_digest() -> str:
    """Twelve digits for the source of the rules, the causes and the engine."""
    folder = Path(health.__file__).parent
    files = sorted(folder.rglob("*.py"))
    content = b"".join(path.relative_to(folder).as_posix().encode() + path.read_bytes() for path in files)
    return hashlib.sha256(content).hexdigest()[:12]


class Heard(Outlet):
    """An outlet that keeps what is told.

    Attributes:
        blocks: the text of each block in the order of the telling.
        line: the sentence on the whole run; empty if none was told.
    """

    def __init__(self) -> None:
        self.blocks: list[str] = []
        self.line = ""

    def tell(self, block: Block) -> None:
        self.blocks.append(as_text([block]))

    def tell_line(self, line: str) -> None:
        self.line = line

    def show(self, text: str, step: int) -> None:
        """Nothing is shown in loggers."""

    def keep(self, summary: Mapping[str, Any], step: int) -> None:
        """Nothing outlives the judgement but its result."""

    def note_finding(self) -> None:
        """Nothing is written any more."""

    def focus(self, steps: int) -> None:
        """Nothing is measured any more."""


@dataclass(frozen=True)
class Judgement:
    """What the rules say of a training.

    Args:
        findings: all of them, each with the step at which it was new, or at which harm made a warning of it.
        causes: at the end.
        line: the sentence on the whole run; empty if the fit ended with an error.
        blocks: what the terminal shows besides.
        diverged: the step at which the loss has diverged; None if it has not.
    """

    findings: list[tuple[Finding, int]]
    causes: list[Cause]
    line: str
    blocks: list[str] = field(default_factory=list)
    diverged: int | None = None


def judge_offline(views: list[StepView], rules: Any = None, error: str = "") -> Judgement:
    """What the rules say of the views of a fit.

    Args:
        views: of the fit, as `read_views` returns them.
        rules: as of `HealthMonitor`.
        error: that ended the fit; empty for none.
    """
    chosen = as_health_rules(rules, [])
    diagnosis = Diagnosis(chosen, (), CAUSES_WITH_REFERENCE)
    new: dict[int, tuple[Finding, int]] = {}

    def note(finding: Finding) -> None:
        new[finding.number] = finding, diagnosis.evidence.step

    # A note that becomes a warning counts from that step on. The reporter does not repeat an equal action for the warning, so
    # the severities have different functions.
    above = ["warn", {"call": lambda finding: note(finding)}]
    actions = Actions.read({"info": {"call": note}, "warning": above, "critical": above})
    heard = Heard()
    reporter = Reporter(diagnosis, actions, heard, writes=False)
    for view in views:
        reporter.consume(view)
    reporter.close(RuntimeError(error) if error else None)
    final = {finding.number: finding for finding in diagnosis.findings}
    findings = [(final.get(number, finding), step) for number, (finding, step) in new.items()]
    return Judgement(findings, diagnosis.causes, heard.line, heard.blocks, diverged_at(views))


def diverged_at(views: list[StepView]) -> int | None:
    """The first of five successive steps, or of the last ones, at which the loss has diverged."""
    series = [(view.step, view.stat(LOSS, "mean")) for view in views if LOSS in view.rows.tensors]
    losses = [(step, float(each.values[0])) for step, each in series if each.measured[0]]
    if not losses:
        return None
    limit = DIVERGED * abs(losses[0][1])
    is_out = [not math.isfinite(loss) or abs(loss) > limit for _, loss in losses]
    return next((losses[i][0] for i in range(len(losses)) if all(is_out[i : i + _STAYS])), None)


def judged(line: Mapping[str, Any], folder: Path, rules: Any = None) -> dict[str, Any]:
    """The line of a judgement for the line of a recorded job, as plain values; an error is its `error`."""
    plain: dict[str, Any] = {"key": line["key"], "rules": HEALTH, "code": code_digest()}
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            views = read_views(folder / line["views"])
            judgement = judge_offline(views, rules, line["error"])
            if shown := _shown(line, views, folder):
                plain |= shown
    except Exception as failure:
        return {**plain, "error": f"{type(failure).__name__}: {failure}"}
    findings = [
        [each.rule, each.rows, each.severity, each.first_step, step, each.evidence[0].text if each.evidence else ""]
        for each, step in judgement.findings
    ]
    causes = [[cause.name, cause.severity] for cause in judgement.causes]
    told = {"line": judgement.line, "blocks": judgement.blocks, "warned": [str(each.message) for each in warned]}
    return encode({**plain, "findings": findings, "causes": causes, **told, "diverged": judgement.diverged})


def _shown(line: Mapping[str, Any], views: list[StepView], folder: Path) -> dict[str, Any]:
    """The step at which the row or fact of a visible fault changed, if the training without the fault is in the folder."""
    without = folder / f"{line.get('seed')}.views"
    shows = MUTATORS[line["fault"]].answer.shows if line.get("fault") in MUTATORS else ()
    if not shows or not without.exists():
        return {}
    return {"shown": changed_at(views, read_views(without), shows, line["rows"], line["onset"])}
