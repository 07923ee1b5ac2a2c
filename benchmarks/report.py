"""`RESULTS.md`: every table of it from the JSON files, and nothing typed by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import tables, targets
from benchmarks.markdown import met, table
from benchmarks.output import RESULTS, read

_HEADINGS = {
    "control": "The control: a callback that does nothing",
    "idle_hooks": "Hooks that do nothing: what torch takes to call one for every output and one for its gradient",
    "everything": "Everything, at every step",
    "scalars": "The same, with every statistic of every row also written as a scalar (`max_scalars=1000000`)",
    "final": "Everything, at every step, with `update` and `final_grad`",
    "every100": "Everything at every 100th step",
    "compiled": "Compiled with `torch.compile` (inductor)",
    "default": "`StatsMonitor()` alone",
    "transforms": "`StatsMonitor()` beside `ClipByGlobalNorm` on all parameters, over the transform without a monitor",
    "bf16": "`StatsMonitor()` in `bf16-mixed`",
    "accumulation": "`StatsMonitor()` with gradients accumulated over four batches",
    "validation": "`StatsMonitor()` with a validation run of one batch after every step",
}
_INTRODUCTION = """# What watching costs

Written by `python -m benchmarks.run` (`make bench`; `make bench FULL=1` for longer runs) from the JSON files in
`benchmarks/results`.

A ratio is the step time with over the step time without. Watched and unwatched blocks of steps alternate inside one fit, under
`Trainer.fit` with the TensorBoard logger, in reverse order every other round; the first two steps of a block do not count. A
step lasts from the beginning of its batch to the beginning of the next. The ratio is the median over rounds of the ratio of the
blocks' median steps, in brackets its bootstrapped 95 % interval. *mean* is the same with the blocks' mean steps, which hold
what happens only now and then, and what disturbs the machine. *share* is the part of the watched step that watching took,
1 − 1/ratio; beside it stands the median of `run/overhead` in the event file, and whether both agree within two points. A
target is met or missed where the whole interval is on one side of it, and *open* otherwise: the machine was too noisy to tell.

Tables come from several files. Where one was measured otherwise than the head says, a line above it tells when and on what."""
_EMPTY = "*empty hooks* is the ratio with hooks that do nothing on every output and every gradient: what torch itself takes."
_PEERS = """`lightning_hooks` watches everything (outputs and their gradients too). `wandb.watch(log="all", log_freq=1)` is
offline and draws histograms of parameters and gradients. The naive callback takes six statistics of outputs, parameters and
gradients with one `.item()` and one `add_scalar` each."""
Row = dict[str, Any]


def render(folder: Path = RESULTS) -> str:
    """The whole report.

    Args:
        folder: of the JSON files; a table whose file is not there says so.
    """
    parts = [_head(folder)]
    for name in ("control", "alternating", "common", "compiled", "reference"):
        kernel = "reference" if name == "reference" else "native"
        empty = _empty(read("control", folder)) if name == "alternating" else None
        overheads = _overheads(read(name, folder), kernel, name, empty)
        parts += [f"## {heading}\n\n{_origin(name, folder)}{body}" for heading, body in overheads]
    sections: list[tuple[str, str, Callable[[dict[str, Any]], str]]] = [
        ("step_parts", "Where the time of a watched step goes", tables.step_parts),
        ("reports", "What the reports of `ClipByGlobalNorm` take", tables.reports),
        ("unwatched", "What a step takes that is not watched", tables.unwatched),
        ("readers", "Several readers of the same tensors", tables.readers),
        ("histograms", "What the default histograms take", tables.histograms),
        ("health", "What the health rules take", tables.health),
        ("recorder", "What the flight recorder takes", tables.recorder),
        ("whole_fits", "Whole fits, as a user has them", tables.whole_fits),
        ("check", "What `check` takes before a run", tables.check),
        ("peers", "The peers, in the same fit", peers),
        ("kernels", "The measurement of one tensor", tables.kernels),
        ("writer", "Writing a step of 1,000 values", tables.writer),
        ("scaling", "From 100 to 10,000 rows", tables.scaling),
        ("many_ranks", "Many ranks", tables.many_ranks),
        ("transforms", "Transforms", tables.transforms),
        ("dashboard", "The page, for a run of 1,000 rows and 10,000 steps", tables.dashboard),
    ]
    for name, heading, body in sections:
        found = read(name, folder)
        parts.append(f"## {heading}\n\n{_origin(name, folder)}{_not_run(name) if found is None else body(found)}")
        if name == "scaling" and folder == RESULTS:
            parts.append("![Cost of a row](../docs/scaling.svg)")
    return "\n\n".join(parts) + "\n"


def _environment(folder: Path) -> dict[str, Any] | None:
    """That of the head of the report."""
    found = next((f for f in (read(name, folder) for name in ("alternating", "peers", "kernels")) if f is not None), None)
    return None if found is None else found["environment"]


def _head(folder: Path) -> str:
    environment = _environment(folder)
    if environment is None:
        return _INTRODUCTION
    lines = [[f"`{key}`", value] for key, value in environment.items()]
    return f"{_INTRODUCTION}\n\n## Machine and versions\n\n{table(['', ''], lines)}"


def _origin(name: str, folder: Path) -> str:
    return origin(read(name, folder), _environment(folder) or {}, ("date", "commit", "cores", "kernel", "load"))


def origin(found: dict[str, Any] | None, head: dict[str, Any], keys: Sequence[str]) -> str:
    """When and on what a file was measured; empty where it is as the head of the report says.

    Args:
        found: what the file holds.
        head: the environment in the head of the report.
        keys: the keys of the environment that are compared and shown.
    """
    if found is None or all(found["environment"].get(key) == head.get(key) for key in keys):
        return ""
    here = {**found["environment"], "load": ", ".join(map(str, found["environment"]["load"]))}
    shown = {"date": "{}", "commit": "commit {}", "gpu": "{}"}
    return ", ".join(shown.get(key, f"{key}: {{}}").format(here.get(key, "–")) for key in keys) + "\n\n"


def _empty(found: dict[str, Any] | None) -> dict[str, float]:
    """The ratio with hooks that do nothing, by workload."""
    rows = [] if found is None else found["rows"]
    return {row["workload"]: row["median"] for row in rows if row["variant"] == "idle_hooks"}


def _overheads(found: dict[str, Any] | None, kernel: str, name: str, empty: dict[str, float] | None) -> list[tuple[str, str]]:
    """The headings and the sections of one file."""
    if found is None:
        return [(f"Overhead: {name}", _not_run(name))]
    parts: list[tuple[str, str]] = []
    for variant, heading in _HEADINGS.items():
        rows = [row for row in found["rows"] if row["variant"] == variant]
        if rows:
            after = ", without the compiled kernel" if kernel == "reference" else ""
            beside = empty if variant == "everything" else None
            body = ratios(rows, targets.RATIOS.get((variant, kernel), {}), variant, beside)
            parts.append((f"{heading}{after}", body + (f"\n\n{_EMPTY}" if beside else "")))
    drawn = [row for row in found["rows"] if row["variant"] == "histograms"]
    if drawn:
        parts.append(("Histograms of everything at every step", _histograms(found["rows"], drawn)))
    return parts


def ratios(rows: list[Row], goals: dict[str, float], variant: str, empty: dict[str, float] | None = None) -> str:
    columns = ["workload", "kernel", "step (ms)", "ratio", "mean", "extra (ms)", "share", "`run/overhead`", "target"]
    if variant == "every100":
        columns[4] = "unwatched steps"
    if empty:
        columns.insert(4, "empty hooks")
    lines = []
    for row in rows:
        start = [f"{row['workload']}: {row['title']}", row["kernel"]]
        if "skipped" in row:
            lines.append([*start, "–", f"not measured: {row['skipped']}", *["–"] * (len(columns) - 4)])
            continue
        digits = 4 if variant == "every100" else 3
        ratio = f"{row['median']:.{digits}f} [{row['low']:.{digits}f}, {row['high']:.{digits}f}]"
        fifth = f"{row['unwatched']:.4f}" if variant == "every100" else f"{row['of_means']:.3f}"
        target = goals.get(row["workload"])
        value = row["unwatched"] if variant == "every100" else row["median"]
        more = value - row["median"]  # the unwatched steps of the same blocks are as uncertain as all of them
        if variant == "every100":
            target = targets.UNWATCHED
        goal = met(value, target, interval=(row["low"] + more, row["high"] + more))
        if target is not None and value <= target < row.get("of_means", 0.0) and variant != "every100":
            goal += "; **not by the mean**"
        if "graph_breaks" in row:
            goal += f"; {row['graph_breaks']} graph breaks"
        line = [*start, f"{row['step_ms']:.1f}", ratio, fifth, f"{row['extra_ms']:.2f}", *_shares(row), goal]
        if empty:
            line.insert(4, f"{empty[row['workload']]:.3f}" if row["workload"] in empty else "–")
        lines.append(line)
    return table(columns, lines)


def _shares(row: Row) -> tuple[str, str]:
    """The share of the watched step that watching took, and what `run/overhead` says of it."""
    if "overhead" not in row:
        return "–", "–"
    share, low, high = (1 - 1 / row[end] for end in ("median", "low", "high"))
    if abs(row["overhead"] - share) <= targets.OVERHEAD:
        verdict = "agrees"
    else:
        within = low - targets.OVERHEAD <= row["overhead"] <= high + targets.OVERHEAD
        verdict = "within the noise" if within else "**does not agree**"
    return f"{share:.3f}", f"{row['overhead']:.3f}, {verdict}"


def _histograms(rows: list[Row], drawn: list[Row]) -> str:
    plain = {row["workload"]: row for row in rows if row["variant"] == "everything" and "skipped" not in row}
    lines = []
    for row in drawn:
        beside = plain.get(row["workload"])
        ratio = f"{row['median']:.3f} [{row['low']:.3f}, {row['high']:.3f}]"
        times, goal = "–", "–"
        if beside and beside["low"] > 1:  # otherwise noise is larger than what is divided by
            factor = (row["median"] - 1) / (beside["median"] - 1)
            times, goal = f"{factor:.2f}", met(factor, targets.HISTOGRAM_FACTOR)
        lines.append([row["workload"], ratio, f"{row['extra_ms']:.2f}", times, goal])
    return table(["workload", "ratio", "extra (ms)", "times the scalar overhead", "target"], lines)


def peers(found: dict[str, Any]) -> str:
    ours = {row["workload"]: row for row in found["rows"] if row["who"] == "lightning_hooks"}
    lines = []
    for row in found["rows"]:
        if "skipped" in row:
            lines.append([row["workload"], row["who"], f"not measured: {row['skipped']}", "–", "–", "–"])
            continue
        extra = ours[row["workload"]]["extra_ms"]
        less = row["extra_ms"] / extra if extra > 0 else math.nan  # ours is within the noise
        goal = met(less, targets.TIMES_LESS.get(row["workload"]), least=True) if row["who"] == "wandb.watch" else "–"
        ratio = f"{row['median']:.2f} [{row['low']:.2f}, {row['high']:.2f}]"
        times = "–" if row["who"] == "lightning_hooks" or math.isnan(less) else f"{less:.1f}"
        lines.append([row["workload"], row["who"], ratio, f"{row['extra_ms']:.1f}", times, goal])
    columns = ["workload", "who", "ratio", "extra (ms)", "times our extra", "target"]
    return f"{_PEERS}\n\n{table(columns, lines)}"


def _not_run(name: str) -> str:
    return f"Not run: `python -m benchmarks.run --only {name}`."
