"""The formats of findings and checks for other programs: `--format text|json|sarif|junit`, and `--json` for short."""

from __future__ import annotations

import argparse
import json
from typing import Final

from lightning_hooks.cli.info import version
from lightning_hooks.health.junit import junit_of
from lightning_hooks.health.outcome import Report
from lightning_hooks.health.sarif import sarif_of

FORMATS: Final = ("text", "json", "sarif", "junit")


def add_format(parser: argparse.ArgumentParser, location: str) -> None:
    """Add the options.

    Args:
        parser: of the command.
        location: the default of `--location`.
    """
    parser.add_argument("--format", choices=FORMATS, default="text", help="what to print; default text")
    parser.add_argument("--json", dest="format", action="store_const", const="json", help="short for --format json")
    parser.add_argument(
        "--location",
        metavar="FILE",
        default=location,
        help=f"with sarif, the file of the repository at which a code host shows what was found; default {location}",
    )


def rendered(report: Report, form: str, location: str, group: str) -> str:
    """A report as SARIF or JUnit.

    Args:
        report: the outcomes.
        form: `sarif` or `junit`.
        location: of the results in SARIF.
        group: of the test cases in JUnit.
    """
    if form == "sarif":
        return json.dumps(sarif_of(report, location, version("lightning-hooks")), indent=1, allow_nan=False)
    return junit_of(report, group)
