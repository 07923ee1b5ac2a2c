"""The tables of the report that are not about whole fits: kernels, writing, rows, transforms."""

from __future__ import annotations

from typing import Any

from benchmarks import targets
from benchmarks.markdown import met, table
from benchmarks.readers import READERS, TOGETHER, share_of_sum
from benchmarks.step_parts import REST, TAKING, WHOLE
from lightning_hooks.stats.ranks import GATHERED


def kernels(found: dict[str, Any]) -> str:
    """The kernel beside `sum` and `copy_`."""
    lines = []
    for row in found["rows"]:
        goal = "–"
        if row["dtype"] == "float32" and row["size"] == 1_000:
            goal = met(row["measure_ns"], targets.KERNEL_CALL_NS) + " (ns)"
        if row["dtype"] == "float32" and row["size"] == 10_000_000:
            goal = met(round(row["measure_gb_s"] / row["sum_gb_s"], 2), targets.KERNEL_SHARE, least=True) + " (of `sum`)"
        figures = [f"{row[f'{name}_{unit}']:,.{digits}f}" for name in ("measure", "sum", "copy")
                   for unit, digits in (("ns", 0), ("gb_s", 1))]  # fmt: skip
        lines.append([row["dtype"], f"{row['size']:.0e}", *figures, goal])
    columns = ["dtype", "elements"]
    columns += [f"{name} ({unit})" for name in ("into a row", "`sum`", "`copy_`") for unit in ("ns", "GB/s")]
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


def writer(found: dict[str, Any]) -> str:
    """Microseconds and bytes a value."""
    lines = []
    for row in found["rows"]:
        goal = "–" if row["form"] == "add_scalar" else met(row["whole_us"], targets.EVENT_US)
        lines.append([row["form"], f"{row['call_us']:.3f}", f"{row['whole_us']:.3f}", f"{row['bytes']:.0f}", goal])
    columns = ["form", "µs a value, the call", "µs a value, with the writer's thread", "bytes a value", "target"]
    return table(columns, lines)


def dashboard(found: dict[str, Any]) -> str:
    """What the page takes."""
    lines = [
        [row["what"], f"not measured: {row['skipped']}", "–"]
        if "skipped" in row
        else [row["what"], f"{row['value']:.3g} {row['unit']}", met(row["value"], row["target"])]
        for row in found["rows"]
    ]
    frames = "A pan step ends when the browser has shown two frames: at 60 Hz it takes at least 17 to 33 ms."
    return f"{table(['', 'measured', 'target'], lines)}\n\n{frames}"


def step_parts(found: dict[str, Any]) -> str:
    """The methods of our callbacks within a step."""
    whole = {row["workload"]: row["unwatched_us"] for row in found["rows"] if row["part"] == WHOLE}
    lines = [
        [
            f"{row['workload']}: {row['title']}",
            row["part"].replace("StatsMonitor.", "").replace("HooksGuard.", "the guard's "),
            f"{row['watched_us']:,.0f}",
            f"{row['unwatched_us']:,.0f}",
            f"{100 * (row['watched_us'] - row['unwatched_us']) / whole[row['workload']]:.1f}",
        ]
        for row in found["rows"]
    ]
    columns = ["workload", "part", "µs, watched", "µs, unwatched", "difference in % of the unwatched step"]
    shares = [
        [
            f"{row['workload']}: {row['title']}",
            f"{row['share']:.3f}",
            f"{row['overhead']:.3f}",
            agrees(row["share"], row["overhead"]),
        ]
        for row in found["rows"]
        if "share" in row
    ]
    return (
        "One fit in which every second step is watched, with the rules of *everything*; medians of wall-clock. The parts are "
        f"methods of the monitor, and of the guard that removes its hooks.\n\n{table(columns, lines)}\n\nThe share of "
        "a watched step that watching takes (the median over neighbours), beside `run/overhead`, which is of both steps, "
        f"as a share of the watched one:\n\n{table(['workload', 'share', '`run/overhead`', 'within two points'], shares)}"
    )


def agrees(share: float, overhead: float) -> str:
    """Whether `run/overhead` is as near to the measured share as was promised."""
    return "agrees" if abs(overhead - share) <= targets.OVERHEAD else "**does not agree**"


def reports(found: dict[str, Any]) -> str:
    """What the reports of a transform take, from the parts of steps."""
    lines = []
    for workload, (title, watched, unwatched) in _parts(found).items():
        call = next(part for part in watched if part.startswith("GradientTransforms.on_before_optimizer_step"))
        extra = watched[call] - unwatched[call] + watched[TAKING]
        share = extra / unwatched[WHOLE]
        shown = [f"{each:,.0f}" for each in (watched[call], unwatched[call], watched[TAKING], extra)]
        lines.append([f"{workload}: {title}", *shown, f"{share:.4f}", met(share, targets.REPORTS)])
    columns = ["workload", "the call, reporting (µs)", "not reporting", "giving the numbers", "extra", "of the step", "target"]
    return (
        "One fit with the transform in every step and a monitor at every second one, where the transform reports; medians. The "
        "call is `GradientTransforms.on_before_optimizer_step`. Where it reports it also runs with the caches that a watched "
        f"step leaves.\n\n{table(columns, lines)}"
    )


def unwatched(found: dict[str, Any]) -> str:
    """What the callbacks' methods take in a step that is not watched."""
    lines = []
    for workload, (title, _, parts) in _parts(found).items():
        own = sum(value for part, value in parts.items() if part not in (REST, WHOLE))
        ratio = 1 + own / (parts[WHOLE] - own)
        lines.append(
            [f"{workload}: {title}", f"{own:.0f}", f"{parts[WHOLE]:,.0f}", f"{ratio:.4f}", met(ratio, targets.UNWATCHED)]
        )
    return (
        "One fit with the rules of *everything* at every 100th step; medians over the steps between. The ratio is that of the "
        "step with the methods of the monitor and of the guard over the step without them; what Lightning takes to call them "
        "is not in it. In a ratio of whole steps, as above, some microseconds are lost in the noise.\n\n"
        f"{table(['workload', 'the methods (µs)', 'the step (µs)', 'ratio', 'target'], lines)}"
    )


def readers(found: dict[str, Any]) -> str:
    """What several readers of the same tensors take alone and together."""
    by_workload: dict[str, list[dict[str, Any]]] = {}
    for row in found["rows"]:
        by_workload.setdefault(row["workload"], []).append(row)
    lines = []
    for workload, rows in by_workload.items():
        extra = {row["who"]: f"{row['extra_ms']:.2f}" for row in rows}
        share = share_of_sum(rows)
        start = [f"{workload}: {rows[0]['title']}", f"{rows[0]['step_ms']:.1f}"]
        shown = [extra[name] for name in (*READERS, TOGETHER)]
        lines.append([*start, *shown, f"{share:.2f}", met(round(share, 2), targets.READERS)])
    columns = ["workload", "step (ms)", *READERS, TOGETHER, "over the sum", "target"]
    return (
        "One fit in which blocks alternate: the rules of *everything*, a capture of every output, a second monitor of outputs "
        "and their gradients, a user's hook on every leaf module, and all of them. Extra milliseconds of a step; the last "
        f"ratio is what all take together over the sum of what each takes alone.\n\n{table(columns, lines)}"
    )


def check(found: dict[str, Any]) -> str:
    """The seconds and the memory of all checks on one batch."""
    lines = [
        [
            f"{row['workload']}: {row['title']}",
            f"{row['step_ms']:.1f}",
            f"{row['seconds']:.2f}",
            f"{row['cpu_seconds']:.2f}",
            f"{row['steps']:.0f}",
            row["slowest"],
            f"{row['extra_mb']:.0f}",
            f"{4 * row['parameters'] / 1e6:.0f}",
            row["verdict"],
        ]
        for row in found["rows"]
    ]
    columns = [
        "workload",
        "step (ms, processor)",
        "seconds",
        "processor",
        "in steps",
        "slowest check",
        "extra peak (MB)",
        "parameters (MB)",
        "verdict",
    ]
    return table(columns, lines)


def histograms(found: dict[str, Any]) -> str:
    """The histograms that a monitor measures by default."""
    lines = [
        [
            f"{row['workload']}: {row['title']}",
            f"{row['step_ms']:.1f}",
            f"{row['median']:.4f} [{row['low']:.4f}, {row['high']:.4f}]",
            met(row["median"], targets.DEFAULT_HISTOGRAMS, interval=(row["low"], row["high"])),
        ]
        for row in found["rows"]
    ]
    text = "The default rules with histograms of every row at every fiftieth step, over the same rules without histograms:"
    return "\n\n".join([text, table(["workload", "step (ms)", "ratio of mean steps", "target"], lines)])


def health(found: dict[str, Any]) -> str:
    """The diagnosis beside a monitor, a monitor of health alone, and the units that some rules need."""
    by_what: dict[str, list[dict[str, Any]]] = {"beside": [], "alone": [], "units": []}
    for row in found["rows"]:
        by_what[row["what"]].append(row)
    beside = [
        [
            f"{row['workload']}: {row['title']}",
            row["rows"],
            f"{row['step_ms']:.1f}",
            *(f"{row[key]:,.0f}" for key in ("usual_us", "mean_us", "largest_us")),
            f"{row['median']:.4f}",
            met(round(row["median"], 4), targets.HEALTH_BESIDE),
        ]
        for row in by_what["beside"]
    ]
    parts = [
        "Beside a `StatsMonitor()`, whose step views the rules read. Most steps only keep the view; at every fifth step the "
        "rules on facts look, at every twentieth or fortieth those on patterns. The ratio is that of the step with the mean "
        "over the step without it.",
        table(["workload", "rows", "step (ms)", "usual (µs)", "mean (µs)", "largest (µs)", "ratio", "target"], beside),
    ]
    for what, goals, text in (
        ("alone", targets.HEALTH_ALONE, "`HealthMonitor()` without another monitor, every fifth step, over the steps between:"),
        (
            "units",
            targets.UNITS,
            "*Everything*, with the units of each output at every tenth step, over the steps between:",
        ),
    ):
        lines = [
            [
                f"{row['workload']}: {row['title']}",
                f"{row['step_ms']:.1f}",
                f"{row['median']:.4f} [{row['low']:.4f}, {row['high']:.4f}]",
                met(row["median"], goals.get(row["workload"]), interval=(row["low"], row["high"])),
            ]
            for row in by_what[what]
        ]
        parts += [text, table(["workload", "step (ms)", "ratio of mean steps", "target"], lines)]
    return "\n\n".join(parts)


def recorder(found: dict[str, Any]) -> str:
    """The flight recorder beside a monitor of everything, and alone."""
    parts: list[str] = []
    for what, goal, text in (
        ("beside", targets.RECORDER_BESIDE, "Beside a monitor that watches everything at every step, over that monitor alone:"),
        ("alone", targets.RECORDER_ALONE, "`FlightRecorder()` alone, over no callback:"),
    ):
        lines = [
            [
                f"{row['workload']}: {row['title']}",
                f"{row['step_ms']:.1f}",
                f"{row['median']:.4f} [{row['low']:.4f}, {row['high']:.4f}]",
                met(row["median"], goal, interval=(row["low"], row["high"])),
            ]
            for row in found["rows"]
            if row["what"] == what
        ]
        parts += [text, table(["workload", "step (ms)", "ratio", "target"], lines)] if lines else []
    return "\n\n".join(parts)


def whole_fits(found: dict[str, Any]) -> str:
    """Whole fits with lists of callbacks, and their mean steps."""
    lines = [
        [
            f"{row['workload']}: {row['title']}",
            f"{row['what']}, over {row['over']}",
            row["steps"],
            f"{row['step_ms']:.1f}",
            *(f"{row[key]:.3f}" for key in ("whole", "mean", "late")),
            *(f"{row[key]:,.0f}" for key in ("early_ms", "outside_ms")),
            met(row["mean"], targets.WHOLE_FITS.get(row["what"], {}).get(row["workload"])),
        ]
        for row in found["rows"]
    ]
    text = (
        "Fits of their own for each list of callbacks, by turns. *Whole* is the ratio of the best fits with all that begins "
        "and ends them, *mean* that of mean steps (median over rounds), *late* the same without the first fifty steps. "
        "*Early* is what the first fifty take more than as many later ones, *outside* what the fit takes around its steps, "
        "both more than in the fits that these are compared with. The target is that of *mean*."
    )
    columns = ["workload", "callbacks", "steps", "step (ms)", "whole", "mean", "late", "early (ms)", "outside (ms)", "target"]
    return "\n\n".join([text, table(columns, lines)])


def _parts(found: dict[str, Any]) -> dict[str, tuple[str, dict[str, float], dict[str, float]]]:
    """By workload: its title, and the microseconds of each part in a watched and in an unwatched step."""
    out: dict[str, tuple[str, dict[str, float], dict[str, float]]] = {}
    for row in found["rows"]:
        _, watched, unwatched = out.setdefault(row["workload"], (row["title"], {}, {}))
        watched[row["part"]], unwatched[row["part"]] = row["watched_us"], row["unwatched_us"]
    return out


def scaling(found: dict[str, Any]) -> str:
    """Cost and memory by the number of rows."""
    rows = found["rows"]
    lines = [[row["rows"], f"{row['ratio']:.2f}", f"{row['extra_ms']:.2f}", f"{row['us_per_row']:.2f}"] for row in rows]
    growth = rows[-1]["us_per_row"] / rows[0]["us_per_row"]
    costs = table(["rows", "ratio", "extra (ms)", "µs a row and step"], lines)
    weights = [
        [row["rows"], f"{row['mb_per_1000_rows']:.2f}", met(row["mb_per_1000_rows"], targets.MEMORY_MB_PER_1000)]
        for row in found["memory"]
    ]
    return (
        f"{costs}\n\nA row of the most costs {growth:.2f} times a row of the fewest (target: constant or falling).\n\n"
        f"{table(['rows', 'MB per 1,000 rows', 'target'], weights)}"
    )


def many_ranks(found: dict[str, Any]) -> str:
    """Bytes, memory and time of a rank by the number of ranks."""
    lines = [
        [
            row["ranks"],
            f"{row['bytes'] / 1e6:.2f}",
            f"{row['seconds'] * 1e3:.1f}",
            f"{row['memory'] / 1e6:.0f}",
            f"{row['error']:.0e}",
            f"{row['gathered_bytes'] / 1e6:.1f}",
            f"{row['gathered_seconds'] * 1e3:.1f}",
            f"{row['gathered_memory'] / 1e6:.0f}",
        ]
        for row in found["rows"]
    ]
    columns = ["ranks", "reduced: MB", "ms", "memory (MB)", "relative error", "gathered: MB", "ms", "memory (MB)"]
    real = [
        [row["ranks"], row["rows"], f"{row['bytes'] / 1e6:.2f}"]
        + [f"{row[f'{way}_{unit}']:.1f}" for way in ("gathered", "reduced") for unit in ("ms", "cpu_ms")]
        for row in found["processes"]
    ]
    times = ["gathered: ms", "of them computing", "reduced: ms", "of them computing"]
    last = found["rows"][-1]
    return (
        f"The table of one rank has {last['rows']:,} rows. Simulated in one process: MB that a rank gives into the "
        f"{last['collectives']} collectives of a step, or receives where tables are gathered; the time that it computes; the "
        "memory that this takes at most; the greatest error of a mean or of squared deviations. Beside it the gathering of "
        f"all tables, which serves up to {GATHERED / 1e6:g} MB.\n\n{table(columns, lines)}\n\nProcesses with gloo on this "
        "machine (they share its cores), the table of all ranks together in MB:\n\n"
        f"{table(['processes', 'rows', 'MB', *times], real)}"
    )


def transforms(found: dict[str, Any]) -> str:
    """Ours beside torch and beside a loop."""
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
