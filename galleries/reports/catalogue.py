"""All reports: the list `REPORTS` of each file of this folder whose name begins with `threads_`."""

from __future__ import annotations

import importlib
from pathlib import Path

from galleries.reports.report import Report


def reports() -> list[Report]:
    """The reports in the order of their numbers."""
    files = sorted(Path(__file__).parent.glob("threads_*.py"))
    found = [each for file in files for each in importlib.import_module(f"galleries.reports.{file.stem}").REPORTS]
    return sorted(found, key=lambda each: each.number)
