"""`RESULTS.md`: every table of it from the JSON files, and nothing typed by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import targets
from benchmarks.output import RESULTS, read

_HEADINGS = {
    "everything": "Everything, at every step",
    "final": "The same with `update` and `final_grad`",
    "every100": "Everything at every 100th step",
    "compiled": "Compiled with `torch.compile` (inductor)",
}
Row = dict[str, Any]


def render(folder: Path = RESULTS) -> str:
    """The whole report.

    Args:
        folder: of the JSON files; a table whose file is not there says so.
    """
    parts = [_head(folder)]
    parts += _overheads(read("alternating", folder), "native")
    parts += _overheads(read("compiled", folder), "native", "compiled")
    parts += _overheads(read("reference", folder), "reference", "reference")
    sections: list[tuple[str, str, Callable[[dict[str, Any]], str]]] = [
        ("peers", "The peers, in the same fit", _peers),
        ("kernels", "The measurement of one tensor", _kernels),
        ("writer", "Writing a step of 1,000 values", _writer),
        ("scaling", "From 100 to 10,000 taps", _scaling),
        ("transforms", "Transforms", _transforms),
    ]
    for name, heading, body in sections:
        found = read(name, folder)
        parts.append(f"## {heading}\n\n{_not_run(name) if found is None else body(found)}")
    return "\n\n".join(parts) + "\n"


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table in Markdown.

    Example:
        >>> print(table(["a", "b"], [[1, "x"]]))
        | a | b |
        |---|---|
        | 1 | x |
    """
    lines = [columns, ["---"] * len(columns), *rows]
    drawn = ["| " + " | ".join(str(cell) for cell in line) + " |" for line in lines]
    drawn[1] = "|" + "---|" * len(columns)
    return "\n".join(drawn)


def met(value: float, target: float | None, least: bool = False) -> str:
    """The target and whether a value keeps it.

    Example:
        >>> met(1.1, 1.12), met(1.2, 1.12), met(40.0, 30.0, least=True), met(1.0, None)
        ('≤ 1.12, met', '≤ 1.12, **missed**', '≥ 30, met', '–')
    """
    if target is None:
        return "–"
    kept = value >= target if least else value <= target
    return f"{'≥' if least else '≤'} {target:g}, {'met' if kept else '**missed**'}"


def _head(folder: Path) -> str:
    found = next((f for f in (read(name, folder) for name in ("alternating", "peers", "kernels")) if f is not None), None)
    text = (
        "# What watching costs\n\n"
        "Written by `python -m benchmarks.run` (`make bench`; `make bench FULL=1` for longer runs) from `benchmarks/results/*.json`.\n\n"
        "A ratio is the step time with over the step time without: watched and unwatched blocks of steps alternate inside one fit "
        "under `Trainer.fit` with the TensorBoard logger, in reverse order every other round; the first two steps of a block do not "
        "count. A step lasts from the beginning of its batch to the beginning of the next. The ratio is the median over rounds of the "
        "ratio of the blocks' median steps, in brackets its bootstrapped 95 % interval; *mean* is the same with the blocks' mean steps."
    )
    if found is None:
        return text
    lines = [[f"`{key}`", value] for key, value in found["environment"].items()]
    return f"{text}\n\n## Machine and versions\n\n{table(['', ''], lines)}"


def _overheads(found: dict[str, Any] | None, kernel: str, name: str = "alternating") -> list[str]:
    if found is None:
        return [f"## Overhead: {name}\n\n{_not_run(name)}"]
    parts = []
    for variant, heading in _HEADINGS.items():
        rows = [row for row in found["rows"] if row["variant"] == variant]
        if rows:
            after = ", without the compiled kernel" if kernel == "reference" else ""
            parts.append(f"## {heading}{after}\n\n{_ratios(rows, targets.RATIOS.get((variant, kernel), {}), variant)}")
    drawn = [row for row in found["rows"] if row["variant"] == "histograms"]
    if drawn:
        parts.append(f"## Histograms of everything at every step\n\n{_histograms(found['rows'], drawn)}")
    return parts


def _ratios(rows: list[Row], goals: dict[str, float], variant: str) -> str:
    columns = ["workload", "kernel", "step (ms)", "ratio", "mean", "extra (ms)", "target"]
    if variant == "every100":
        columns[4] = "unwatched steps"
    lines = []
    for row in rows:
        start = [f"{row['workload']}: {row['title']}", row["kernel"]]
        if "skipped" in row:
            lines.append([*start, "–", f"not measured: {row['skipped']}", "–", "–", "–"])
            continue
        digits = 4 if variant == "every100" else 3
        ratio = f"{row['median']:.{digits}f} [{row['low']:.{digits}f}, {row['high']:.{digits}f}]"
        fifth = f"{row['unwatched']:.4f}" if variant == "every100" else f"{row['of_means']:.3f}"
        goal = met(row["median"], goals.get(row["workload"]))
        if "graph_breaks" in row:
            goal += f"; {row['graph_breaks']} graph breaks"
        lines.append([*start, f"{row['step_ms']:.1f}", ratio, fifth, f"{row['extra_ms']:.2f}", goal])
    return table(columns, lines)


def _histograms(rows: list[Row], drawn: list[Row]) -> str:
    plain = {row["workload"]: row for row in rows if row["variant"] == "everything" and "skipped" not in row}
    lines = []
    for row in drawn:
        beside = plain.get(row["workload"])
        factor = (row["median"] - 1) / (beside["median"] - 1) if beside and beside["median"] > 1 else float("nan")
        ratio = f"{row['median']:.3f} [{row['low']:.3f}, {row['high']:.3f}]"
        lines.append([row["workload"], ratio, f"{row['extra_ms']:.2f}", f"{factor:.2f}", met(factor, targets.HISTOGRAM_FACTOR)])
    return table(["workload", "ratio", "extra (ms)", "times the scalar overhead", "target"], lines)


def _peers(found: dict[str, Any]) -> str:
    ours = {row["workload"]: row for row in found["rows"] if row["who"] == "lightning_hooks"}
    lines = []
    for row in found["rows"]:
        if "skipped" in row:
            lines.append([row["workload"], row["who"], f"not measured: {row['skipped']}", "–", "–", "–"])
            continue
        extra = ours[row["workload"]]["extra_ms"]
        less = row["extra_ms"] / extra if extra > 0 else float("inf")
        mine = row["who"] == "lightning_hooks"
        goal = met(less, targets.TIMES_LESS.get(row["workload"]), least=True) if row["who"] == "wandb.watch" else "–"
        ratio = f"{row['median']:.2f} [{row['low']:.2f}, {row['high']:.2f}]"
        lines.append([row["workload"], row["who"], ratio, f"{row['extra_ms']:.1f}", "–" if mine else f"{less:.1f}", goal])
    columns = ["workload", "who", "ratio", "extra (ms)", "times our extra", "target"]
    note = (
        '`lightning_hooks` watches everything (outputs and their gradients too), `wandb.watch(log="all", log_freq=1)` is offline '
        "and draws histograms of parameters and gradients, the naive callback takes six statistics of outputs, parameters and "
        "gradients with one `.item()` and one `add_scalar` each."
    )
    return f"{note}\n\n{table(columns, lines)}"


def _kernels(found: dict[str, Any]) -> str:
    lines = []
    for row in found["rows"]:
        goal = "–"
        if row["dtype"] == "float32" and row["size"] == 1_000:
            goal = met(row["measure_ns"], targets.KERNEL_CALL_NS) + " (ns)"
        if row["dtype"] == "float32" and row["size"] == 10_000_000:
            goal = met(round(row["measure_gb_s"] / row["sum_gb_s"], 2), targets.KERNEL_SHARE, least=True) + " (of `sum`)"
        figures = [f"{row[f'{name}_{unit}']:,.{digits}f}" for name in ("measure", "reference", "sum", "copy")
                   for unit, digits in (("ns", 0), ("gb_s", 1))]  # fmt: skip
        lines.append([row["dtype"], f"{row['size']:.0e}", *figures, goal])
    columns = ["dtype", "elements"]
    columns += [f"{name} ({unit})" for name in ("`measure`", "reference", "`sum`", "`copy_`") for unit in ("ns", "GB/s")]
    lists = [
        [
            row["workload"],
            row["tensors"],
            f"{row['elements']:,}",
            f"{row['measure_many_ms']:.2f}",
            f"{row['foreach_norm_ms']:.2f}",
        ]
        for row in found["lists"]
    ]
    kernel = f"Kernel in use: {found['environment']['kernel']}."
    several = table(["parameters of", "tensors", "elements", "`measure_many` (ms)", "`_foreach_norm` (ms)"], lists)
    return f"{kernel}\n\n{table([*columns, 'target'], lines)}\n\nA list of tensors in one call:\n\n{several}"


def _writer(found: dict[str, Any]) -> str:
    lines = []
    for row in found["rows"]:
        goal = "–" if row["form"] == "add_scalar" else met(row["whole_us"], targets.EVENT_US)
        lines.append([row["form"], f"{row['call_us']:.3f}", f"{row['whole_us']:.3f}", f"{row['bytes']:.0f}", goal])
    columns = ["form", "µs a value, the call", "µs a value, with the writer's thread", "bytes a value", "target"]
    return table(columns, lines)


def _scaling(found: dict[str, Any]) -> str:
    rows = found["rows"]
    lines = [[row["taps"], f"{row['ratio']:.2f}", f"{row['extra_ms']:.2f}", f"{row['us_per_tap']:.2f}"] for row in rows]
    growth = rows[-1]["us_per_tap"] / rows[0]["us_per_tap"]
    costs = table(["taps", "ratio", "extra (ms)", "µs a tap and step"], lines)
    weights = [
        [row["taps"], f"{row['mb_per_1000_taps']:.2f}", met(row["mb_per_1000_taps"], targets.MEMORY_MB_PER_1000)]
        for row in found["memory"]
    ]
    return (
        f"{costs}\n\nA tap of the most costs {growth:.2f} times a tap of the fewest (target: constant or falling).\n\n"
        f"![Cost of a tap](../docs/scaling.svg)\n\n{table(['taps', 'MB per 1,000 taps', 'target'], weights)}"
    )


def _transforms(found: dict[str, Any]) -> str:
    lines = []
    for row in found["rows"]:
        if "skipped" in row:
            lines.append([row["workload"], row["transform"], f"not measured: {row['skipped']}", "–", "–", "–"])
            continue
        ratio = row["ms"] / row["beside_ms"]
        goal = met(round(ratio, 2), targets.TRANSFORMS[row["transform"]])
        beside = f"{row['beside_ms']:.3f} ({row['beside']})"
        lines.append([row["workload"], row["transform"], f"{row['ms']:.3f}", beside, f"{ratio:.2f}", goal])
    return table(["workload", "transform", "ms", "beside (ms)", "ratio", "target"], lines)


def _not_run(name: str) -> str:
    return f"Not run: `python -m benchmarks.run --only {name}`."
