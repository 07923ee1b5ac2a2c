"""Chooses curves: the one that shows what a finding is about, and those that the strip above a map offers."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from lightning_hooks.dashboard.source import RunSource

_ROOT: Final = "watch/"
_OURS: Final = re.compile(r"(?:.*/)?(val_|test_|predict_)?run/([^/]+)", re.DOTALL)
"""A global number of this package: its stage, unless it is of the training, and its name."""

_STATISTICS: Final[Mapping[str, tuple[str, ...]]] = {
    "ConstantOutput": ("unit_variation",),
    "DeadLayer": ("zero_fraction",),
    "DeadUnits": ("dead_units", "zero_fraction"),
    "ExplodingGradient": ("norm",),
    "GradientSpike": ("norm",),
    "InputNotNormalised": ("rms", "norm", "mean"),
    "LostUpdates": ("zero_fraction", "ratio"),
    "MassiveActivation": ("outlier_units", "abs_max"),
    "MovesBetweenSteps": ("rms", "norm"),
    "NonFinite": ("nonfinite", "norm"),
    "OddInitialization": ("rms", "norm", "std"),
    "PoorInitialization": ("rms", "norm", "std"),
    "SaturatedActivation": ("rms", "std", "norm"),
    "Underflow": ("abs_max",),
    "UnitCollapse": ("effective_units", "count"),
    "UpdateTooLarge": ("ratio",),
    "UpdateTooSmall": ("ratio",),
    "VanishingGradient": ("rms", "norm"),
    "WeightGrowth": ("rms", "norm"),
    "WeightShrinkage": ("rms", "norm"),
}
"""The statistics of the tensor of a finding that show it, by its rule, the clearest first."""
_USUAL: Final = ("norm", "std", "rms", "abs_max", "mean")
"""The statistics that show a finding of any other rule."""
_TABLES: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    "CopyUpdated": (("update", "ratio"),),
    "GradientsConsumed": (("param", "norm"),),
    "LearningRateZero": (("update", "norm"),),
    "NoGradient": (("grad", "norm"),),
    "NotInOptimizer": (("update", "ratio"), ("update", "norm")),
    "UnchangedParameter": (("update", "ratio"),),
    "UnusedOutput": (("grad", "norm"),),
    "WeightDecayTooLarge": (("param", "norm"),),
}
"""The tables that show a finding better than one of its tensor, or if it names no tensor, by its rule."""
_USUAL_TABLES: Final = (("grad", "norm"), ("output", "std"), ("output", "norm"), ("param", "norm"))
_ONLY: Final = frozenset({"NotInOptimizer"})
"""The rules whose findings other tables do not show: an unused parameter has no update, while its gradient looks healthy."""
_SCALARS: Final[Mapping[str, str]] = {
    "AccumulationNotDivided": "grad_norm",
    "BetasSwapped": "update_ratio",
    "ClearedBeforeStep": "grad_norm",
    "ClippingAlways": "grad_norm",
    "ClippingMisplaced": "grad_norm",
    "EpsilonVanishes": "update_ratio",
    "GradientsKept": "grad_norm",
    "GradientsOfAnotherLoss": "grad_norm",
    "GradientsRepeat": "grad_norm",
    "LearningRateFallen": "update_ratio",
    "ScheduleAdvancesEachBatch": "update_ratio",
    "ScheduleAtOtherPace": "update_ratio",
    "ScheduleEndsEarly": "update_ratio",
    "SlowLearning": "update_ratio",
    "WarmUpOutlastsFit": "update_ratio",
    "ZeroGradients": "grad_norm",
}
"""The global number that shows a finding of the whole run, by its rule; by default the loss."""
_OF_CAUSES: Final[Mapping[str, str]] = {"LearningRateTooHigh": "update_ratio"}
"""The global number that shows a cause better than the curves of its findings, by the name of the cause."""


def with_curves(run: RunSource, findings: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The findings, each with the `curve` that shows it: `tensor`, `stat` and `row`, or the `tag` of a scalar."""
    tables: dict[str, list[str]] = {}
    for tensor, stat in run.tables():
        tables.setdefault(tensor, []).append(stat)
    tags = strip_tags(run)
    return [{**finding, **_curve_of(run, finding, tables, tags)} for finding in findings]


def _curve_of(
    run: RunSource, finding: Mapping[str, Any], tables: Mapping[str, Sequence[str]], tags: Sequence[str]
) -> dict[str, Any]:
    name, rule = finding.get("name"), str(finding.get("rule", ""))
    if finding.get("kind") == "cause":
        tag = _global(_OF_CAUSES[rule], tags) if rule in _OF_CAUSES else None
        return {} if tag is None else {"curve": {"tag": tag}}
    if not name:
        tag = _global(_SCALARS.get(rule, "loss"), tags) or next(iter(tags), None)
        return {} if tag is None else {"curve": {"tag": tag}}
    for tensor, stat in _candidates(finding, rule, tables):
        if stat not in tables.get(tensor, ()):
            continue
        rows = run.rows(tensor, stat)
        # If a table has no row for a parameter, as that of `output`, take the row of its module.
        row = next((each for each in (name, str(name).rpartition(".")[0]) if each in rows), None)
        if row is not None:
            return {"curve": {"tensor": tensor, "stat": stat, "row": row}, "stat": finding.get("stat", stat)}
    return {}


def _global(name: str, tags: Sequence[str]) -> str | None:
    """The tag of a global number of ours; None if the run does not have it."""
    return next((tag for tag in tags if tag.split("/")[-2:] == ["run", name]), None)


def _candidates(finding: Mapping[str, Any], rule: str, tables: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, str]]:
    """The tables that may show a finding, the clearest first."""
    tensor, given = finding.get("tensor"), finding.get("stat")
    if tensor and isinstance(given, str):
        yield tensor, given
    yield from _with_prefixes(_TABLES.get(rule, ()), tables)
    if rule in _ONLY:
        return
    if tensor:
        yield from ((tensor, stat) for stat in [*_STATISTICS.get(rule, ()), *_USUAL])
    yield from _with_prefixes(_USUAL_TABLES, tables)


def _with_prefixes(pairs: Iterable[tuple[str, str]], tables: Collection[str]) -> Iterator[tuple[str, str]]:
    """The pairs of a tensor and a statistic, with the prefixes of the monitors whose tables the run has."""
    return ((tensor, stat) for kind, stat in pairs for tensor in tables if tensor.rpartition("/")[2] == kind)


def strip_tags(run: RunSource) -> list[str]:
    """The scalars that the strip offers, its default first: the loss, those that the module logs, our other global numbers.

    Scalars of single rows and reports of transforms are left out: the map and the overview show them.
    """
    of_rows = [f"{tensor}_{stat}" for tensor, stat in run.tables()]
    # A monitor without a prefix writes its scalars below `watch/`, but its tables without it. Leave out both forms.
    return offered(run.scalar_tags(), {*of_rows, *(f"{_ROOT}{each}" for each in of_rows)})


def offered(tags: Sequence[str], of_rows: Collection[str]) -> list[str]:
    """The tags of `strip_tags`.

    Args:
        tags: of all scalars of the run.
        of_rows: the tensors and statistics of which single rows are logged: `grad_norm`.

    Example:
        >>> offered(["grad_norm/fc", "run/overhead", "train_loss", "lr-Adam", "run/loss"], {"grad_norm"})
        ['run/loss', 'train_loss', 'lr-Adam', 'run/overhead']
    """
    global_tags = [tag for tag in tags if "transform_" not in tag and not _is_of_row(tag, of_rows)]
    found = {tag: _OURS.fullmatch(tag) for tag in global_tags}
    ours = [tag for tag, match in found.items() if match]
    users = [tag for tag, match in found.items() if not match]
    losses = [tag for tag, match in found.items() if match and match[2] == "loss" and not match[1]]
    default = sorted(losses, key=len)[:1] or [tag for tag in users if "loss" in tag.lower()][:1]
    return [*dict.fromkeys([*default, *users, *ours])]


def _is_of_row(tag: str, of_rows: Collection[str]) -> bool:
    """Whether a tag is `TENSOR_STATISTIC/ROW`. Both parts may contain a slash."""
    parts = tag.split("/")
    return any("/".join(parts[:i]) in of_rows for i in range(1, len(parts)))
