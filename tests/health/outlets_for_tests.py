"""An outlet and a run that note what a reporter asks of them."""

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from lightning_hooks.health.actions import Actions
from lightning_hooks.health.engine import Diagnosis
from lightning_hooks.health.reporter import Reporter
from lightning_hooks.health.text import as_text
from lightning_hooks.plan.plan import Plan
from lightning_hooks.records.run_context import RunContext, RunFacts, check_reason, checkpoint_name
from tests.health.views import views_of

PLAN = Plan([], [], ())
SICK = [1.0] * 5 + [20.0] * 15
HEALTHY = [1.0] * 20


def views(series, row="a", first=0):
    """Views whose only row has these values, from a first step on."""
    made = views_of([("grad", row)], np.asarray(series, dtype=float)[:, None])
    return [replace(view, step=view.step + first) for view in made]


@dataclass
class Outlet:
    """Notes blocks, lines, the last Markdown, and focuses."""

    blocks: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    markdown: str = ""
    focuses: list[int] = field(default_factory=list)
    summaries: list[dict] = field(default_factory=list)
    noted: int = 0

    def tell(self, block):
        self.blocks.append(as_text([block]))

    def tell_line(self, line):
        self.lines.append(line)

    def show(self, text, step):
        self.markdown = text

    def keep(self, summary, step):
        self.summaries.append({**summary, "step": step})

    def note_finding(self):
        self.noted += 1

    def focus(self, steps):
        self.focuses.append(steps)


class Context(RunContext):
    """A run of one of several ranks."""

    def __init__(self, folder: Path | None, rank: int = 0) -> None:
        super().__init__(folder)
        self.rank = rank
        self.reasons: list[str] = []
        self.checkpoints: list[str] = []

    @property
    def facts(self) -> RunFacts:
        return RunFacts(rank=self.rank)

    def stop(self, reason: str) -> None:
        check_reason(reason)
        self.reasons.append(reason)

    def save_checkpoint(self, name: str) -> None:
        self.checkpoints.append(checkpoint_name(name))


def started(folder, *rules, actions=None, rank=0, state=None, **options):
    """A reporter that has started, its outlet and its run; `state` is loaded before the start as in a resumed fit."""
    outlet, context = Outlet(), Context(folder, rank)
    known = Actions.read(actions, [rule.name for rule in rules])
    reporter = Reporter(Diagnosis(rules, **options), known, outlet)
    if state is not None:
        reporter.load_state_dict(state)
    reporter.start(PLAN, context)
    return reporter, outlet, context


def consume(reporter, views, error=None):
    """Pass views to a reporter and close it."""
    for view in views:
        reporter.consume(view)
    reporter.close(error)
