"""What changed against the last healthy run of a folder: settings, and the first row that differs. It loads torch."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from lightning_hooks.cli.checkup import checkup_of, folder_of, has_journal
from lightning_hooks.cli.comparing import compared, reference_of
from lightning_hooks.errors import RuleError, counted, shortened, shown
from lightning_hooks.health.finding import Finding
from lightning_hooks.health.journal import FINDINGS
from lightning_hooks.health.reference.rules_facts import FACTS
from lightning_hooks.health.reference.rules_structure import STRUCTURE
from lightning_hooks.health.row_names import user_name
from lightning_hooks.tensorboard.run_files import event_files
from lightning_hooks.untrusted import UnreadableError, read_bytes

_SETTINGS: Final = frozenset(each.name for each in (STRUCTURE, *FACTS))
"""The rules that compare how runs were set up; the others compare numbers."""
_HYPERPARAMETERS: Final = "hparams.yaml"  # written by the loggers of Lightning
_LARGEST: Final = 1_000_000  # bytes of such a file
_MOST: Final = 500  # hyperparameters that are compared
_ABSENT: Final = object()


class Changes(NamedTuple):
    """How a run differs from the last healthy one.

    Args:
        good: the folder of the healthy run.
        settings: differences of hyperparameters and of how the steps trained, in words.
        rows: differences of numbers, in words, the first one first.
        problem: why the numbers could not be compared; empty if they were.
    """

    good: Path
    settings: tuple[str, ...]
    rows: tuple[str, ...]
    problem: str = ""


def last_healthy(run: Path) -> Path | None:
    """The run beside this one that is healthy and began last before it; None if there is none."""
    folder = folder_of(run).resolve()
    start = began(folder)
    beside = [each for each in folder.parent.iterdir() if each.is_dir() and each != folder and (each / FINDINGS).exists()]
    times: dict[Path, float] = {}
    for each in beside:
        with suppress(RuleError, OSError):  # A run that cannot be read is no healthy one.
            times[each] = began(each)
    for each in sorted((each for each in times if times[each] < start), key=lambda other: -times[other]):
        with suppress(RuleError, OSError), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about a damaged journal, which is then no healthy run
            if event_files(each) and checkup_of(each).is_healthy:
                return run.parent / each.name if run.is_dir() else each
    return None


def began(run: Path) -> float:
    """When the fit of a run began, in seconds since 1970; for a run without a journal, when its first file was written."""
    folder = folder_of(run)
    if has_journal(folder):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            events = checkup_of(folder).known.events
        if events and events[0].time is not None:
            return events[0].time
    return min((file.stat().st_mtime for file in folder.iterdir() if file.is_file()), default=0.0)


def changes_since(good: Path, run: Path) -> Changes:
    """How a run differs from a good one by more than a seed explains."""
    hyperparameters = tuple(_of_hyperparameters(folder_of(good), folder_of(run)))
    try:
        findings = sorted(compared(reference_of([good]), run).findings, key=lambda finding: finding.first_step)
    except RuleError as error:
        return Changes(good, hyperparameters, (), str(error))
    settings = tuple(_told(each) for each in findings if each.rule in _SETTINGS)
    rows = tuple(_told(each) for each in findings if each.rule not in _SETTINGS)
    return Changes(good, hyperparameters + settings, rows)


def _told(finding: Finding) -> str:
    """The first difference that a finding holds."""
    first = min(finding.evidence, key=lambda symptom: symptom.step, default=None)
    if first is None:
        return finding.message
    where = f"{user_name(first.row)}: " if first.row and first.row != "loss" else ""
    more = f" (and {counted(len(finding.rows) - 1, 'more row')})" if len(finding.rows) > 1 else ""
    return f"step {finding.first_step}, {where}{first.text}{more}"


def _of_hyperparameters(good: Path, run: Path) -> Iterator[str]:
    """The hyperparameters that differ, of runs whose loggers have written them."""
    before, now = (_hyperparameters(folder / _HYPERPARAMETERS) for folder in (good, run))
    if before is None or now is None:
        return
    for name in dict.fromkeys([*before, *now]):
        a, b = before.get(name, _ABSENT), now.get(name, _ABSENT)
        if a is not b and a != b:
            was, is_now = ("absent" if each is _ABSENT else shortened(shown(each), 60) for each in (a, b))
            yield f"hyperparameter {name}: {was} before, {is_now} now"


def _hyperparameters(file: Path) -> dict[str, Any] | None:
    """The hyperparameters of a file by dotted name; None if there is no such file, or it holds something else."""
    import yaml

    try:
        content = yaml.safe_load(read_bytes(file, _LARGEST))
    except (UnreadableError, yaml.YAMLError, ValueError, RecursionError):
        return None
    return dict(itertools.islice(_flat(content, ""), _MOST)) if isinstance(content, Mapping) else None


def _flat(values: Mapping[Any, Any], prefix: str, depth: int = 5) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and depth:
            yield from _flat(value, f"{prefix}{key}.", depth - 1)
        else:
            yield f"{prefix}{key}", value
