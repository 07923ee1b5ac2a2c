"""Writes the table of the gallery into docs/flight_recorder.md, from results/: `python -m galleries.recorder.table`."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from galleries import markdown
from galleries.recorder.catalogue import faulty, healthy
from galleries.recorder.fault import Fault
from galleries.recorder.samples import samples

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parent / "results"
PAGE = ROOT / "docs" / "flight_recorder.md"
PARTS = ("verdict", "module", "step", "operation")
Line = dict[str, Any]


def main() -> None:
    """Write each part of the page between its markers."""
    text = PAGE.read_text(encoding="utf-8")
    for name, part in {"gallery": section(*recorded()), **samples()}.items():
        text = replaced(text, name, part)
    PAGE.write_text(text, encoding="utf-8")


def recorded() -> tuple[list[Line], list[Line]]:
    """The answers and the costs of the gallery."""
    return _lines(RESULTS / "answers.jsonl"), _lines(RESULTS / "costs.jsonl")


def replaced(text: str, name: str, part: str) -> str:
    """A text whose part between `<!-- NAME -->` and `<!-- /NAME -->` is another.

    Raises:
        ValueError: there are no such markers.
    """
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    if text.count(begin) != 1 or text.count(end) != 1:
        raise ValueError(f"{PAGE.name} needs {begin} and {end} once")
    head, rest = text.split(begin)
    return f"{head}{begin}\n{part.strip()}\n{end}{rest.split(end)[1]}"


def section(answers: Sequence[Line], costs: Sequence[Line]) -> str:
    """The totals of all tools, and a row for each training."""
    runs = list(dict.fromkeys((line["tool"], line["backend"]) for line in answers))
    of = {(line["tool"], line["backend"], line["name"]): line for line in answers}
    numeric = [fault for fault in faulty() if not fault.failure]
    last = answers[-1]
    return "\n\n".join(
        [
            f"{len(numeric)} trainings whose numbers stop being finite, {len(faulty()) - len(numeric)} that an exception ends, "
            f"and {len(healthy())} healthy ones that meet NaN or infinity without harm, with torch {last['torch']}, Lightning "
            f"{last['lightning']} and transformers {last['transformers']}. A cell says in how many of the trainings with a bad "
            "number a tool names the right part. A healthy training of which it says something is a false alarm.",
            totals(runs, of, costs, numeric),
            costs_note(costs),
            "What each tool names of each training: v the verdict, m the module or parameter, s the step, o the operation; `-` "
            "where it says nothing that is right. *all* where every part that the training has is right.",
            details(runs, of, [*numeric, *(fault for fault in faulty() if fault.failure)]),
            "Healthy trainings:",
            silences(runs, of),
        ]
    )


def totals(runs: Sequence[tuple[str, str]], of: dict[Any, Line], costs: Sequence[Line], faults: Sequence[Fault]) -> str:
    """One row for each tool."""
    rows = []
    for tool, backend in runs:
        lines = [of[tool, backend, fault.name] for fault in faults if (tool, backend, fault.name) in of]
        sound = [of[tool, backend, fault.name] for fault in healthy() if (tool, backend, fault.name) in of]
        cells = []
        for part in PARTS:
            having = [line["right"][part] for line in lines if part in line["right"]]
            cells.append(f"{sum(having)} of {len(having)}")
        alarms = f"{sum(not line['right']['silent'] for line in sound)} of {len(sound)}"
        rows.append([_shown(tool, backend), *cells, alarms, *(_ratios(costs, tool, backend))])
    return markdown.table(["tool", *PARTS, "false alarms", "cost, small", "cost, ordinary"], rows)


def costs_note(costs: Sequence[Line]) -> str:
    """What the two columns of cost are."""
    ordinary = next(line for line in costs if line["name"] == "perceptron")
    small = [line["milliseconds"] for line in costs if line["tool"] == ordinary["tool"] and line["name"] != "perceptron"]
    return (
        "*Cost* is the time of a step with the tool as a multiple of the time without it, on one thread of a processor that "
        f"had other work: *small* is the median over healthy trainings of a few hundred parameters, whose steps take "
        f"{statistics.median(small):.1f} ms, *ordinary* is one of four layers of 1024 units and 256 rows, whose steps take "
        f"{ordinary['milliseconds']:.0f} ms. A tool that stops a training has no cost there."
    )


def details(runs: Sequence[tuple[str, str]], of: dict[Any, Line], faults: Sequence[Fault]) -> str:
    """One row for each training with a fault."""
    rows = []
    for fault in faults:
        cells = [_cell(of.get((tool, backend, fault.name))) for tool, backend in runs]
        rows.append([fault.name, fault.says, _expected(fault), *cells])
    return markdown.table(["training", "what happens", "who made it", *(_shown(*run) for run in runs)], rows)


def silences(runs: Sequence[tuple[str, str]], of: dict[Any, Line]) -> str:
    """One row for each healthy training."""
    rows = []
    for fault in healthy():
        lines = [of.get((tool, backend, fault.name)) for tool, backend in runs]
        cells = ["not run" if line is None else "silent" if line["right"]["silent"] else "alarm" for line in lines]
        rows.append([fault.name, fault.says, *cells])
    return markdown.table(["training", "what happens", *(_shown(*run) for run in runs)], rows)


def _expected(fault: Fault) -> str:
    made = fault.operation or fault.failure or fault.module or str(fault.verdict)
    return f"`{made}`{f' of {fault.node}' if fault.node else ''}"


def _cell(line: Line | None) -> str:
    if line is None:
        return "not run"
    if line["answer"] is None:
        return "-"
    if all(line["right"].values()):
        return "all"
    return "".join(part[0] for part in PARTS if line["right"].get(part)) or "-"


def _ratios(costs: Sequence[Line], tool: str, backend: str) -> list[str]:
    if backend != "eager":
        return ["", ""]
    own = [line for line in costs if line["tool"] == tool and line["ratio"] is not None]
    small = [line["ratio"] for line in own if line["name"] != "perceptron"]
    ordinary = [line["ratio"] for line in own if line["name"] == "perceptron"]
    return [f"{statistics.median(each):.2f}" if each else "-" for each in (small, ordinary)]


def _shown(tool: str, backend: str) -> str:
    return tool if backend == "eager" else f"{tool}, compiled"


def _lines(path: Path) -> list[Line]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


if __name__ == "__main__":
    main()
