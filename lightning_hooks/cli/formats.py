"""The formats of findings and checks for other programs: the options `--json` and `--junit`."""

from __future__ import annotations

import argparse


def add_formats(group: argparse._MutuallyExclusiveGroup) -> None:
    """Add the options, which set `format`: `text`, `json` or `junit`.

    Args:
        group: of the options that exclude each other.
    """
    for form, described in (("json", "print JSON"), ("junit", "print JUnit XML, which CI shows as tests")):
        group.add_argument(f"--{form}", dest="format", action="store_const", const=form, default="text", help=described)
