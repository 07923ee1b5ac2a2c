"""The loop of a benchmark that has one row for each workload and each thing that is measured of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks import output
from benchmarks.workloads import SIZES

Measure = Callable[..., dict[str, Any]]


def run(
    name: str,
    measure: Measure,
    whats: Sequence[str],
    shown: Callable[[dict[str, Any]], str],
    arguments: Sequence[str] | None,
    seconds: float,
) -> None:
    """Measure in a process each, print a line for each row, and write all rows after each.

    Args:
        name: of the JSON file.
        measure: called with the letter of a workload, what is measured, seconds, a key of `SIZES` and a device.
        whats: what can be measured.
        shown: the numbers of a row in words.
        arguments: of the command line.
        seconds: about how long a row takes by default.
    """
    parser = output.arguments("Measure and write.")
    parser.add_argument("--workloads", default="A,B,C,D")
    parser.add_argument("--what", default=",".join(whats))
    parser.add_argument("--seconds", type=float, default=seconds)
    parser.add_argument("--sizes", choices=list(SIZES), default="cpu")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    options = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    for letter in options.workloads.split(","):
        for what in options.what.split(","):
            row = output.in_new_process(measure, letter, what, options.seconds, options.sizes, options.device)
            rows.append(row)
            print(f"{letter} {what} {shown(row)}", flush=True)
            output.write(options.name or name, rows, options.out)


def ratio(row: dict[str, Any]) -> str:
    """A ratio with its interval."""
    return f"{row['median']:.4f} [{row['low']:.4f}, {row['high']:.4f}]"
