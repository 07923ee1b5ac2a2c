"""The commands `view`, `report`, `doctor`, `diff`, `compare` and `baseline`, which read runs.

They do not load Lightning, and torch only where health rules or a baseline read an event file.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from lightning_hooks.cli.options import Parser
from lightning_hooks.cli.progress import progress_bar
from lightning_hooks.cli.usual_folders import NAMED, usual_folders
from lightning_hooks.errors import printable


def _view(arguments: list[str]) -> None:
    parser = Parser(
        "view",
        "Show the runs of a log directory in a browser, also a run that begins later, until Ctrl-C. Without a LOGDIR, those in "
        f"{NAMED} of the current folder.",
    )
    parser.add_argument("logdir", metavar="LOGDIR", type=Path, nargs="?", help="the folder with the runs, at any depth")
    parser.add_argument(
        "--host", metavar="ADDRESS", default="127.0.0.1", help="the address to listen at; default this machine only"
    )
    parser.add_argument("--port", metavar="NUMBER", type=_port, help="default 6007, or a free one where that is taken")
    parser.add_argument("--open", action="store_true", help="open the page in the browser")
    args = parser.parse_args(arguments)
    from lightning_hooks.dashboard.view import view

    if args.logdir is not None:
        view(args.logdir, args.host, args.port, opens=args.open)
        return
    folders = usual_folders("view", records=True)
    view(folders[0] if len(folders) == 1 else Path(), args.host, args.port, opens=args.open, within=folders)


def _report(arguments: list[str]) -> None:
    parser = Parser("report", "Write a run as one HTML file that needs no server.")
    parser.add_argument("run", metavar="RUN", type=Path, help="the log directory of the run, or one event file")
    parser.add_argument(
        "--out", metavar="FILE", type=Path, help="the file to write; default report.html in the folder of the run"
    )
    parser.add_argument("--limit", metavar="MEGABYTES", type=_megabytes, help="the most that it may have; default 5")
    args = parser.parse_args(arguments)
    from lightning_hooks.dashboard.report import LIMIT, write_report

    limit = LIMIT if args.limit is None else int(args.limit * 1e6)
    out = args.out or (args.run if args.run.is_dir() else args.run.parent) / "report.html"
    with progress_bar("Reading tables") as progress:
        size = write_report(args.run, out, limit, progress)
    print(f"{printable(str(out))}: {size / 1e6:.1f} MB; open it in a browser")


def _port(text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() else -1
    # Check the range here: some systems take a larger number modulo 65,536.
    if not 0 <= number <= 65535:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a port: a whole number from 0, which takes any that is free, to 65535"
        )
    return number


def _megabytes(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of megabytes above 0")
    return number


def _diff(arguments: list[str]) -> int:
    parser = Parser(
        "diff",
        "Say at which step and in which rows two runs differ. Of two flight records, run both steps again and name the first "
        "operator that gives other bits.",
        {0: "both are equal to the last bit", 1: "they differ"},
    )
    what = "the log directory of a run, or one event file; or the folder of a flight record"
    parser.add_argument("a", metavar="RUN", type=Path, help=what)
    parser.add_argument("b", metavar="RUN", type=Path, help="likewise")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--module", metavar="PATH", action="append", help="of a record, as of replay; twice for two modules")
    args = parser.parse_args(arguments)
    if args.module or all(map(_is_record, (args.a, args.b))):
        if args.json or len(args.module or ()) > 2:
            parser.error("two flight records take --module once or twice, and no --json")
        from lightning_hooks.cli.two_records import diff_of_records

        return diff_of_records(args.a, args.b, args.module or [])
    from lightning_hooks.dashboard.diff import diff

    with progress_bar("Comparing tables") as progress:
        result = diff(args.a, args.b, progress)
    print(result.json() if args.json else result)
    return 0 if result.equal else 1


def _is_record(path: Path) -> bool:
    """Whether a path is the folder of a flight record, or its file."""
    return os.path.isfile(path / "record.json") or path.name == "record.json"


def _compare(arguments: list[str]) -> int:
    from lightning_hooks.cli.compare import compare

    return compare(arguments)


def _baseline(arguments: list[str]) -> None:
    from lightning_hooks.cli.compare import baseline

    baseline(arguments)


def _doctor(arguments: list[str]) -> int:
    from lightning_hooks.cli.doctor import doctor

    return doctor(arguments)


RUN_COMMANDS: Mapping[str, Callable[[list[str]], int | None]] = {
    "view": _view,
    "report": _report,
    "doctor": _doctor,
    "diff": _diff,
    "compare": _compare,
    "baseline": _baseline,
}
