"""The diagnosis of a run as Markdown for an issue or a language model: what is wrong, why, where, and what changed."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from lightning_hooks.cli.checkup import Checkup, command_for, folder_of
from lightning_hooks.cli.info import version
from lightning_hooks.cli.screen import verdict_of
from lightning_hooks.cli.tokens import Line, Section, text_within
from lightning_hooks.dashboard.local_run import LocalRun
from lightning_hooks.errors import RuleError, counted, listed, printable
from lightning_hooks.health.markdown import escaped
from lightning_hooks.health.rule import Severity
from lightning_hooks.health.text import Block, blocks_of
from lightning_hooks.records.facts import StepFacts
from lightning_hooks.records.saved_facts import facts_of

LIMIT: Final = 2000
"""The most tokens of the Markdown of a run."""
_DETAIL: Final = 4
"""The rank of a line that helps, but that a reader can do without."""


def issue_of(checkup: Checkup, others: int = 0) -> str:
    """The diagnosis of a run as Markdown, of at most 2,000 tokens.

    Args:
        checkup: the diagnosis.
        others: the number of further runs that were diagnosed, and of which this one was chosen.
    """
    blocks = blocks_of(checkup.causes, checkup.findings, least=Severity.INFO)
    step = min((finding.first_step for finding in checkup.standing), default=None)
    known, run = _facts_of(checkup.run), [Line(escaped(verdict_of(checkup)))]
    if others:
        run.append(Line(f"This is the newest of {others + 1} runs that is not healthy, or else the newest."))
    sections = [
        Section("# Diagnosis of a training by lightning_hooks", run),
        Section("## What is wrong", [line for rank, block in enumerate(blocks) for line in _of_block(block, rank)]),
        Section("## Lines of code", [*_lines_of_code(checkup, known)]),
        Section(f"## Optimizer{'' if step is None else f' at step {step}'}", [*_of_optimizers(_at(step, known))]),
        Section("## Changed since the last healthy run", [*_changes(checkup)]),
        Section("## Rules and versions", [*_of_rules(checkup)]),
    ]
    return text_within(sections, LIMIT, f"`{command_for(checkup.run)} --all` prints all findings")


def _of_block(block: Block, number: int) -> Iterator[Line]:
    """A fault: the worst one in full, of the others the first line before their reasons."""
    name, _, message = escaped(block.verdict).partition(". ")
    least = 0 if number == 0 else min(2 + number, 9)
    yield Line(f"**{block.severity.upper()}: {name}.** {message}", least)
    for i, text in enumerate(block.why):
        yield Line(f"- Evidence: {escaped(text)}", least + min(i, 1) * (_DETAIL + 1))
    for text in block.next_steps:
        yield Line(f"- To try: {escaped(text)}", least + 2)
    for text in block.alternatives:
        yield Line(f"- Or: {escaped(text)}", least + _DETAIL + 2)


def _facts_of(path: Path) -> list[tuple[int, StepFacts]]:
    """How steps trained, from the event file: the steps at which it changed; empty if no file says it."""
    run = LocalRun(folder_of(path))
    for prefix in dict.fromkeys([run.prefix_of(None), *(run.prefix_of(name) for name in ("watch", "health"))]):
        try:
            known = [*facts_of(run.saved_facts(prefix))]
        except RuleError:
            continue
        if known:
            return known
    return []


def _at(step: int | None, known: Sequence[tuple[int, StepFacts]]) -> StepFacts | None:
    """The facts of a step, or of the last one; None if there are none."""
    # The facts hold from a step on. A fault may be found at a step before the first that was written.
    until = [facts for at, facts in known if step is None or at <= step]
    return until[-1] if until else known[0][1] if known else None


def _lines_of_code(checkup: Checkup, known: Sequence[tuple[int, StepFacts]]) -> Iterator[Line]:
    """The lines of the user's code that lookouts and flight records name."""
    for name, record in LocalRun(folder_of(checkup.run)).records().items():
        yield Line(f"- {escaped(f'{name}, step {record.step}: {record.verdict.value}. {record.message}')}", 1)
        if record.operation is not None and record.operation.source:
            code = printable(record.operation.line).replace("`", "'")
            yield Line(f"- {escaped(record.operation.source)}: `{code}` ({escaped(record.operation.name)})", 1)
    seen = [sighting for _, facts in known for sighting in facts.sightings if sighting.line]
    # The text of a sighting may count the steps, so that each line is told with its last text.
    for (place, _), text in {(sighting.line, sighting.kind): sighting.text for sighting in seen}.items():
        yield Line(f"- {escaped(f'{place}: {text}')}", 1 if checkup.standing else _DETAIL)


def _of_optimizers(facts: StepFacts | None) -> Iterator[Line]:
    if facts is None:
        return
    for number, optimizer in enumerate(facts.optimizers):
        for place, group in enumerate(optimizer.groups):
            which = f", group {place}" if len(optimizer.groups) > 1 else ""
            numbers = {"learning rate": group.lr, "weight decay": group.weight_decay}
            values = ", ".join(f"{name} {_number(value)}" for name, value in numbers.items())
            held = counted(len(group.params) + group.strangers, "parameter tensor")
            yield Line(f"- {escaped(optimizer.type)}{which}: {values}, {held}", 1 if number == place == 0 else _DETAIL)
    settings = {
        "precision": facts.precision,
        "batches in a step": facts.accumulate,
        "steps of the fit": facts.last_step,
        "loss scale": facts.loss_scale if facts.loss_scale != 1.0 else None,
        "frozen parameters": listed(facts.frozen, 3) or None,
        "modules in evaluation mode": listed((name or "the model itself" for name in facts.evaluating), 3) or None,
    }
    for name, value in settings.items():
        if value is not None:
            yield Line(f"- {name}: {escaped(str(value))}", _DETAIL)


def _changes(checkup: Checkup) -> Iterator[Line]:
    if checkup.is_healthy:
        return
    from lightning_hooks.cli.last_healthy import changes_since, last_healthy

    good = last_healthy(checkup.run)
    if good is None:
        yield Line("There is no healthy run beside this one that began before it.", 2)
        return
    found = changes_since(good, checkup.run)
    yield Line(f"Compared with {escaped(str(good))}, by what both runs have recorded:", 1)
    for number, text in enumerate(found.settings):
        yield Line(f"- Setting: {escaped(text)}", 1 if number < 5 else _DETAIL)
    for number, text in enumerate(found.rows):
        yield Line(
            f"- {'First row that differs' if number == 0 else 'Then'}: {escaped(text)}", 1 if number == 0 else _DETAIL + 1
        )
    if found.problem:
        yield Line(f"- The numbers cannot be compared: {escaped(found.problem)}", 2)
    elif not found.settings and not found.rows:
        yield Line("- No setting and no row differs by more than a seed explains.", 1)


def _of_rules(checkup: Checkup) -> Iterator[Line]:
    reasons, failed = checkup.reasons("could_not_run"), checkup.reasons("failed")
    if ran := checkup.names("ran"):
        yield Line(
            f"- {counted(len(ran), 'rule')} looked, {len(reasons)} could not: {escaped(listed(reasons, 8) or 'none')}", 7
        )
    for name, why in failed.items():
        yield Line(f"- {escaped(f'{name} failed: {why}')}", _DETAIL)
    here = {"lightning_hooks": version("lightning-hooks"), "torch": version("torch"), "Python": platform.python_version()}
    yield Line(f"- Where this was written: {', '.join(f'{name} {each}' for name, each in here.items())}", 8)


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.6g}"


def newest_sick(checkups: Sequence[Checkup]) -> Checkup:
    """Of several runs, the one that began last of those that are not healthy, or else of all."""
    from lightning_hooks.cli.last_healthy import began

    sick = [each for each in checkups if each.standing]
    return max(sick or checkups, key=lambda each: began(each.run))
