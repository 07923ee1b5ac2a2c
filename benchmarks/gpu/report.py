"""`RESULTS-<gpu>.md`: the tables of a GPU, with the code that makes those of `RESULTS.md`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from benchmarks import tables, targets
from benchmarks.markdown import met, table
from benchmarks.output import read
from benchmarks.report import origin, peers, ratios

_INTRODUCTION = """# What watching costs on a GPU

Written by `python -m benchmarks.gpu` (`make gpu`) from the JSON files in `{folder}`.

A ratio is the step time with over the step time without. Watched and unwatched blocks of steps alternate inside one fit, under
`Trainer.fit` with the TensorBoard logger, in reverse order every other round; the first two steps of a block do not count. The
counted steps of a block are timed together, between two moments at which the device has nothing left to do. The ratio is the
median over rounds of the ratio of the blocks' mean steps, in brackets its bootstrapped 95 % interval. Everything is watched at
every step: outputs and gradients of all leaf modules, parameters and gradients, eight statistics each. `run/overhead` is the
time of the host, so it does not agree with the ratio here."""
_HEADINGS = {
    "everything": "Everything, at every step",
    "at_once": "The same, with a launch in each hook",
    "all_late": "The same, with up to eight outputs in a launch, too",
    "in_python": "The same, launched from Python",
    "final": "The same with `update` and `final_grad`",
    "histograms": "Histograms of everything at every step",
    "control": "The control: a callback that does nothing",
    "idle_hooks": "Hooks that do nothing",
}
_LAUNCHES = """Microseconds of the host. Tight: in a loop. Cold: from a hook on each leaf module in the forward of D, between
which torch runs; the median."""
_HOT = """Microseconds of the device to measure a tensor that the kernel before has just written. One column is with sums of
magnitudes and underflow, one with a launch more, which counts the histogram. The others are without, divided among at most so
many programs of a launch."""
_LISTS = """Microseconds of a call that measures or compares many tensors, and of a hook on a row with units. MB are those that
are read. Where torch compares, the device waits for the host."""
_UNITS = """*Everything* at every step with the units of all outputs, over everything without units: of a step with units, and
of the mean of ten steps of which one has units, as a `HealthMonitor` asks for them."""
_COMPILED = """Everything at every step in a GPT whose layers are compiled, over the same fit without watching. Compiled code
calls *hooks* in Python; it launches *operations* itself, so that they may stand in CUDA graphs (`reduce-overhead`). Rows are
those with a value in the step that has the fewest. Calls are those of hooks from compiled code in one step."""
_BUSY = (("busy_ms", 1), ("launches", 0))
_ORIGIN = ("date", "commit", "gpu")
_FITS = ("G", "A", "B", "C", "D", "control", "final")


def render(folder: Path) -> str:
    """The whole report.

    Args:
        folder: of the JSON files; what is not there is said under *Parts*.
    """
    done = read("parts", folder) or {}
    found = {name: read(name, folder) for name in (*_FITS, *_TABLES)}
    sections = [_INTRODUCTION.format(folder=f"benchmarks/results/{folder.name}")]
    environment: dict[str, Any] = next((each["environment"] for each in found.values() if each), {})
    sections.append(
        "## Machine and versions\n\n" + table(["", ""], [[f"`{key}`", value] for key, value in environment.items()])
    )
    sections.append("## Parts\n\n" + _parts(done))
    for variant, heading in _HEADINGS.items():
        by_file = {name: [row for row in (found[name] or {"rows": []})["rows"] if row["variant"] == variant] for name in _FITS}
        chosen = [row for rows in by_file.values() for row in rows]
        if chosen:
            goals = targets.GPU_RATIOS if variant == "everything" else {}
            origins = {name: origin(found[name], environment, _ORIGIN) for name, rows in by_file.items() if rows}
            others = "".join(f"{name}: {text}" for name, text in origins.items() if text)
            sections.append(f"## {heading}\n\n{others}{ratios(chosen, goals, variant)}")
    for name, (heading, body) in _TABLES.items():
        of_name = found[name]
        if of_name:
            sections.append(f"## {heading}\n\n{origin(of_name, environment, _ORIGIN)}{body(of_name)}")
    return "\n\n".join(sections) + "\n"


def _launches(found: dict[str, Any]) -> str:
    lines = [[row["what"], row["parameters"], f"{row['tight_us']:.2f}", f"{row['cold_us']:.2f}"] for row in found["rows"]]
    return f"{_LAUNCHES}\n\n{table(['launched by', 'parameters', 'tight (µs)', 'cold (µs)'], lines)}"


def _hot(found: dict[str, Any]) -> str:
    by_size: dict[tuple[str, float], dict[str, float]] = {}
    for row in found["rows"]:
        programs = "as the package does" if row["programs"] is None else f"{row['programs']} programs"
        label = "with magnitudes" if row["magnitudes"] else "with a histogram" if row.get("counted") else programs
        by_size.setdefault((row["dtype"], row["mb"]), {})[label] = row["us"]
    labels = list(dict.fromkeys(label for each in by_size.values() for label in each))
    lines = [
        [dtype, f"{mb:g}", *(f"{each[label]:.1f}" if label in each else "–" for label in labels)]
        for (dtype, mb), each in by_size.items()
    ]
    return f"{_HOT}\n\n{table(['dtype', 'MB', *labels], lines)}"


def _lists(found: dict[str, Any]) -> str:
    lines = []
    for row in found["rows"]:
        times = (f"{row[key]:,.1f}" if row[key] is not None else "–" for key in ("host_us", "device_us"))
        lines.append([row["workload"], row["what"], row["tensors"], f"{row['mb']:,.1f}", row["launches"], *times])
    columns = ["workload", "what", "tensors", "MB", "launches from Python", "host (µs)", "device (µs)"]
    return f"{_LISTS}\n\n{table(columns, lines)}"


def _units(found: dict[str, Any]) -> str:
    lines = [
        [
            f"{row['workload']}: {row['title']}",
            f"{row['step_ms']:.1f}",
            f"{row['each']:.3f}, {row['each_ms']:.1f} ms" if "each" in row else "–",
            f"{row['median']:.4f} [{row['low']:.4f}, {row['high']:.4f}]",
            met(row["median"], targets.GPU_HEALTH_BESIDE, interval=(row["low"], row["high"])),
        ]
        for row in found["rows"]
    ]
    return f"{_UNITS}\n\n{table(['workload', 'step (ms)', 'a step with units', 'mean of ten steps', 'target'], lines)}"


def _compiled(found: dict[str, Any]) -> str:
    lines = []
    for row in found["rows"]:
        start = [f"{row['workload']}: {row['title']}", row["compiler"], row["way"]]
        if "failed" in row:
            lines.append([*start, "–", f"not measured: {row['failed']}", *["–"] * 5])
            continue
        share = f"{row['measured']:,} of {row['rows']:,}" + "".join(f"; not {each}" for each in row["missing"])
        if row["steps"] < row["steps_watched"]:
            share += f"; **in {row['steps']} of {row['steps_watched']} steps**"
        skipped = f"; {row['skipped']} skipped" * bool(row["skipped"]) + "".join(f": {each}" for each in row["reasons"])
        ratio = f"{row['median']:.3f} [{row['low']:.3f}, {row['high']:.3f}]"
        made = f"{row['compiled_graphs']}, {row['graph_breaks']} breaks"
        captured = ("–" if row["cuda_graphs"] is None else str(row["cuda_graphs"])) + skipped
        calls = "–" if row["calls"] is None else row["calls"]
        lines.append([*start, f"{row['step_ms']:.1f}", ratio, f"{row['extra_ms']:.2f}", share, calls, made, captured])
    columns = ["workload", "compiler", "measured by", "step (ms)", "ratio", "extra (ms)", "rows", "calls", "compiled graphs"]
    return f"{_COMPILED}\n\n{table([*columns, 'CUDA graphs'], lines)}"


def _parts(done: dict[str, Any]) -> str:
    lines = []
    for name, part in done.items():
        more = ""
        if name == "tests" and "passed" in part:
            more = f"{part['passed']} passed, {len(part['failed'])} failed, {len(part['skipped'])} skipped"
            more += "".join(f"; {case}" for case in [*part["failed"], *part["skipped"]])
        lines.append([name, part["outcome"], f"{part['seconds']:.0f}", more])
    return table(["part", "outcome", "seconds", ""], lines)


def _bandwidth(found: dict[str, Any]) -> str:
    lines = []
    for row in found["rows"]:
        large = row["mb"] >= targets.GPU_LARGE_MB
        goal = met(round(row["share"], 2), targets.GPU_KERNEL_SHARE, least=True) if large else "–"
        keys = ("kernel_gb_s", "magnitudes_gb_s", "with_zeros_gb_s", "sum_gb_s", "copy_gb_s")
        figures = [f"{row[key]:,.0f}" if key in row else "–" for key in keys]
        lines.append([row["dtype"], f"{row['mb']:,.1f}", f"{row['kernel_us']:.1f}", *figures, f"{row['share']:.2f}", goal])
    columns = ["dtype", "MB", "a tensor (µs)", "read (GB/s)", "with magnitudes", "half of them zeros"]
    columns += ["`sum`", "copy, read and written", "share"]
    host = table(["on the host", "tensors", "µs"], [[row["what"], row["tensors"], f"{row['us']:.1f}"] for row in found["host"]])
    return f"{table([*columns, 'target'], lines)}\n\n{host}"


def _synchronisations(found: dict[str, Any]) -> str:
    names = ("debug_mode", "cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaMemcpy", "cudaEventSynchronize")
    lines = []
    for row in found["rows"]:
        more = sum(row[f"{name}_with"] - row[f"{name}_without"] for name in names[:-1])
        pairs = [f"{row[f'{name}_with']:g} / {row[f'{name}_without']:g}" for name in names]
        lines.append([row["workload"], *pairs, met(more, 0.0)])
    columns = ["workload", *(f"`{name}`" for name in names), "target, without the last"]
    busy = [
        [row["workload"], *(f"{row[f'{key}_with']:,.{digits}f} / {row[f'{key}_without']:,.{digits}f}" for key, digits in _BUSY)]
        for row in found["rows"]
        if "busy_ms_with" in row
    ]
    more = f"\n\n{table(['workload', 'device busy (ms)', 'kernels and copies'], busy)}" if busy else ""
    return f"With / without watching, median of a step.\n\n{table(columns, lines)}{more}"


_TABLES: Final[dict[str, tuple[str, Callable[[dict[str, Any]], str]]]] = {
    "launches": ("A launch on the host", _launches),
    "step_parts": ("The parts of a step", tables.step_parts),
    "bandwidth": ("The kernel beside a copy", _bandwidth),
    "compiled": ("A compiled GPT", _compiled),
    "hot": ("Tensors that have just been written", _hot),
    "lists": ("Lists of tensors", _lists),
    "step_parts_compared": ("The parts of a step in which gradients are compared", tables.step_parts),
    "synchronisations": ("Synchronisations in a step", _synchronisations),
    "units": ("What units take", _units),
    "health": ("What the diagnosis of the health rules takes", tables.health),
    "histograms": ("What the default histograms take", tables.histograms),
    "recorder": ("What the flight recorder takes", tables.recorder),
    "recorder_alone": ("What the flight recorder alone takes", tables.recorder),
    "peers": ("The peers, in the same fit", peers),
}
