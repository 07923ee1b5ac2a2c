"""The commands `compare` and `baseline`: their options. What they do is in `comparing`, which loads torch."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from lightning_hooks.cli.formats import add_formats
from lightning_hooks.cli.options import Parser

_GOOD: Final = "the log directory of a good run, or a baseline"
_CODES: Final = {0: "no warning or worse stands", 1: "the run differs: one stands"}


def compare(arguments: list[str]) -> int:
    """Print where a run differs from good ones; returns 1 if a finding of severity warning or critical stands, else 0."""
    parser = Parser("compare", "Say where a run differs from good ones by more than another seed explains.", _CODES)
    parser.add_argument("good", metavar="GOOD", type=Path, nargs="+", help=_GOOD)
    parser.add_argument("run", metavar="RUN", type=Path, help="the log directory of the run to compare")
    parser.add_argument("--accept", metavar="PATTERN", action="append", default=[], help="findings that are meant, as Rule/row")
    add_formats(parser.add_mutually_exclusive_group())
    args = parser.parse_args(arguments)
    from lightning_hooks.cli.comparing import print_comparison

    return print_comparison(args.good, args.run, args.accept, args.format)


def baseline(arguments: list[str]) -> None:
    """Write what good runs tell to one file."""
    parser = Parser("baseline", "Keep what good runs tell in one small file, for `compare` and `HealthMonitor(reference=…)`.")
    parser.add_argument("runs", metavar="RUN", type=Path, nargs="+", help="the log directory of a good run")
    parser.add_argument(
        "-o", "--out", metavar="FILE", type=Path, required=True, help="the file to write; its name ends with .json"
    )
    args = parser.parse_args(arguments)
    from lightning_hooks.cli.comparing import keep_baseline

    keep_baseline(args.runs, args.out)
