"""docs/versions.md from the results of the matrix."""

from __future__ import annotations

import re
from typing import Any

_HEAD = """# Versions that were run

Written by `make matrix` (`tests/environments/matrix.py`) from the results that it keeps. Each row is an environment of its
own, in which the wheel of the package was installed beside these versions and the tests below ran; what failed was run again
after a mend (`--again`). The commit is that of the package and its tests, `+` where the tree differed from it, `–` where it was
not kept. Another run is `make test`: all tests, with the versions in `constraints.txt`.
"""
_NAMES = {"torch": "torch", "torchmetrics": "torchmetrics", "tensorboard": "TensorBoard", "numpy": "NumPy"}


def page(results: dict[str, Any], what_ran: str, not_run: list[str]) -> str:
    """The page.

    Args:
        results: of each combination by its name.
        what_ran: the tests, in words.
        not_run: what nobody has run, in words.
    """
    heads = ["environment", "Python", *_NAMES.values(), "Lightning", "passed", "failed", "skipped", "date", "commit"]
    lines = [_HEAD, f"The tests: {what_ran}.", "", _row(heads), _row(["---"] * len(heads))]
    for name, result in results.items():
        lines.append(_row(_cells(name, result)))
    failed = {name: result for name, result in results.items() if result.get("failed") or result.get("error")}
    lines += ["", "## What did not pass", ""]
    for name, result in failed.items():
        if "error" in result:
            lines.append(f"- **{name}** could not be installed: `{_short(result['error'])}`")
        for test, reason in result.get("failed", {}).items():
            lines.append(f"- **{name}** `{test}`: {_short(reason)}")
    if not failed:
        lines.append("Nothing.")
    lines += ["", "## Not run", "", *(f"- {line}" for line in not_run), ""]
    return "\n".join(lines)


def _cells(name: str, result: dict[str, Any]) -> list[str]:
    versions = result.get("versions", {})
    only = "lightning" not in versions and "pytorch-lightning" in versions
    lightning = f"pytorch_lightning {versions['pytorch-lightning']}" if only else versions.get("lightning", "")
    counts = ["not installed", "", ""]
    if "passed" in result:
        counts = [str(result["passed"]), str(len(result["failed"])), str(result["skipped"])]
    found = [versions.get(package, "") for package in _NAMES]
    return [name, result["python"], *found, lightning, *counts, result["date"], result.get("commit", "–")]


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _short(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip().replace("|", "\\|")[:200]
