"""The command `lightning-hooks check`: the checks of a config on its first batch."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from lightning_hooks.cli.formats import add_formats
from lightning_hooks.cli.options import Parser
from lightning_hooks.cli.usages import helps
from lightning_hooks.errors import HooksError


def check(arguments: list[str]) -> int:
    """Check the first batch of a config; returns 1 if a check fails, else 0."""
    if helps("check", arguments):
        return 0
    options, rest = _read(arguments)
    if not any(each.startswith("--config") or each == "-c" for each in rest):
        raise HooksError("check needs --config FILE; `lightning-hooks check --help` lists the options")
    from lightning_hooks.cli.training import lightning_cli

    cli = lightning_cli("check", rest)
    from lightning_hooks.callbacks.check import check as run

    checks = {"OverfitsBatch": True} if options.overfit else None
    accept = [*options.accept, *options.accept_file] or None
    report = run(cli.trainer, cli.model, cli.datamodule, checks=checks, accept=accept, time_limit=options.time_limit)
    if options.format == "junit":
        from lightning_hooks.checks.outcomes import report_of_checks
        from lightning_hooks.health.junit import junit_of

        print(junit_of([report_of_checks(_config(rest), report)], "lightning_hooks.check"))
    else:
        print(report.to_json() if options.format == "json" else report)
    return 0 if report.ok else 1


def _config(arguments: list[str]) -> str:
    """The last config of the command line, where its own settings are."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-c", "--config", default="")
    return str(parser.parse_known_args(arguments)[0].config)


def _read(arguments: list[str]) -> tuple[Any, list[str]]:
    """The options of the command, and the arguments for LightningCLI."""
    parser = Parser("check", add_help=False, allow_abbrev=False)
    add_formats(parser.add_mutually_exclusive_group())
    parser.add_argument("--accept", action="append", default=[])
    parser.add_argument("--accept-file", action="append", default=[], type=Path)
    parser.add_argument("--overfit", action="store_true")
    parser.add_argument("--time-limit", type=float, default=60.0)
    return parser.parse_known_args(arguments)
