"""`RESULTS-<gpu>.md`: the tables of a GPU, with the code that makes those of `RESULTS.md`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

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
    "final": "The same with `update` and `final_grad`",
    "histograms": "Histograms of everything at every step",
    "control": "The control: a callback that does nothing",
    "idle_hooks": "Hooks that do nothing",
}
_ORIGIN = ("date", "commit", "gpu")
_FITS = ("G", "A", "B", "C", "D", "control", "final")


def render(folder: Path) -> str:
    """The whole report.

    Args:
        folder: of the JSON files; what is not there is said under *Parts*.
    """
    done = read("parts", folder) or {}
    found = {name: read(name, folder) for name in (*_FITS, "bandwidth", "synchronisations", "peers", "health", "recorder")}
    sections = [_INTRODUCTION.format(folder=f"benchmarks/results/{folder.name}")]
    environment = next((each["environment"] for each in found.values() if each), {})
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
    tables_of: list[tuple[str, str, Callable[[dict[str, Any]], str]]] = [
        ("bandwidth", "The kernel beside a copy", _bandwidth),
        ("synchronisations", "Synchronisations in a step", _synchronisations),
        ("health", "What the health rules take", tables.health),
        ("recorder", "What the flight recorder takes", tables.recorder),
        ("peers", "The peers, in the same fit", peers),
    ]
    for name, heading, body in tables_of:
        of_name = found[name]
        if of_name:
            sections.append(f"## {heading}\n\n{origin(of_name, environment, _ORIGIN)}{body(of_name)}")
    return "\n\n".join(sections) + "\n"


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
        figures = [f"{row[key]:,.0f}" for key in ("kernel_gb_s", "with_zeros_gb_s", "sum_gb_s", "copy_gb_s")]
        lines.append([row["dtype"], f"{row['mb']:,.1f}", f"{row['kernel_us']:.1f}", *figures, f"{row['share']:.2f}", goal])
    columns = ["dtype", "MB", "a tensor (µs)", "read (GB/s)", "half of them zeros", "`sum`", "copy, read and written", "share"]
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
    return f"With / without watching, median of a step.\n\n{table(columns, lines)}"
