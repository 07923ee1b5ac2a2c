"""Where a reference is read from: the folders of good runs, or a baseline."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from lightning_hooks.errors import RuleError, shown
from lightning_hooks.health.reference.baseline import read_baseline
from lightning_hooks.health.reference.learning import learn
from lightning_hooks.health.reference.reference import BAND_KEYS, TRAIT_KEYS, Reference
from lightning_hooks.records.step_view import StepView

NEEDED: frozenset[str] = frozenset(tensor for tensor, _ in (*BAND_KEYS, *TRAIT_KEYS))
"""The tensors that a reference is learned from."""


def read_reference(sources: Any, views_of: Callable[[Path], Iterable[StepView]]) -> Reference:
    """The reference of good runs.

    Args:
        sources: the folder of a run, or its event file, or a list of these; or a baseline, whose name ends with `.json`.
        views_of: reads the step views of a run.

    Raises:
        RuleError: a source is missing or damaged, or runs and a baseline are mixed.
    """
    paths = [Path(each) for each in _listed(sources)]
    baselines = [path for path in paths if path.suffix == ".json"]
    if len(paths) > 1 and baselines:
        raise RuleError(
            f"reference: {baselines[0]} is a baseline, which stands for all its runs; give it alone, or a list of runs"
        )
    if baselines:
        return read_baseline(baselines[0])
    for path in paths:
        if not path.exists():
            raise RuleError(f"reference: there is no run {path}")
    return learn((str(path), _views(path, views_of)) for path in paths)


def _views(path: Path, views_of: Callable[[Path], Iterable[StepView]]) -> Iterable[StepView]:
    try:
        return views_of(path)
    except RuleError as error:
        raise RuleError(f"reference: {error}") from error


def _listed(sources: Any) -> Sequence[str | os.PathLike[str]]:
    listed = [sources] if isinstance(sources, (str, os.PathLike)) else sources
    if not isinstance(listed, Sequence) or not listed or not all(isinstance(each, (str, os.PathLike)) for each in listed):
        raise RuleError(
            f"reference must be the folder of a good run, a list of folders, or a baseline.json, got {shown(sources)}"
        )
    return listed
