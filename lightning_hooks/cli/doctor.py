"""The command `lightning-hooks doctor`: its options. What it does is in `diagnosing`, which loads NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from lightning_hooks.cli.formats import add_formats
from lightning_hooks.cli.options import Parser
from lightning_hooks.cli.usual_folders import NAMED, usual_folders

_DESCRIPTION: Final = f"""\
Say what is wrong with a training, what most likely causes it, which rules looked and which could not. Without a RUN, of the
runs in {NAMED} of the current folder.

A run with a HealthMonitor is read from its journal. Of another run the default rules read the event file. If a folder has
several runs, each gets one line. A run is healthy if nothing is wrong and its loss shows that it has learned; otherwise no
problem was found."""
_CODES: Final = {
    0: "no warning or worse stands in any run",
    1: "one stands in a run",
    2: "none stands, and a run cannot be judged, as a fit that was killed before any rule looked; or wrong options",
}


def doctor(arguments: list[str]) -> int:
    """Print the diagnosis of runs.

    Returns:
        1 if a finding of severity warning or critical stands in one of them, else 2 if one cannot be judged, else 0.
    """
    parser = _parser()
    args = parser.parse_args(arguments)
    if args.recompute and args.fit is not None:
        parser.error("--recompute reads the event file of all fits of a folder, so it cannot be combined with --fit")
    if args.is_followed and (args.recompute or args.fit is not None):
        parser.error("--follow cannot be combined with --fit or --recompute")
    from lightning_hooks.cli.diagnosing import diagnose

    args.runs = args.runs or usual_folders("doctor")
    return diagnose(args, parser)


def _parser() -> Parser:
    parser = Parser("doctor", _DESCRIPTION, _CODES)
    parser.add_argument("runs", metavar="RUN", type=Path, nargs="*", help="the log directory of a run, or a folder above runs")
    forms = parser.add_mutually_exclusive_group()
    forms.add_argument("--all", dest="is_whole", action="store_true", help="print all findings of each run with all reasons")
    add_formats(forms)
    forms.add_argument(
        "--markdown",
        dest="format",
        action="store_const",
        const="markdown",
        help="print Markdown of at most 2,000 tokens for an issue or a language model: the fault and its evidence, the rate "
        "and the optimizer, lines of code, and what changed since the last healthy run beside this one; of several runs, of "
        "the newest that is not healthy",
    )
    forms.add_argument(
        "--follow", dest="is_followed", action="store_true", help="print findings as the fit makes them, until it ends"
    )
    parser.add_argument("--since", type=int, default=0, metavar="STEP", help="only findings that began at this step or later")
    parser.add_argument("--fit", type=int, metavar="NUMBER", help="a fit of a folder with several, from 1; default: the newest")
    parser.add_argument("--recompute", action="store_true", help="let the default rules read the event file despite a journal")
    return parser
