"""All scripts: the lists `REPORTS` of the files `threads_*.py` of this folder, and `COMMON` of its files `common_*.py`."""

from __future__ import annotations

import importlib
from pathlib import Path

from galleries.reports.report import Report


def reports() -> list[Report]:
    """The rebuilt reports in the order of their numbers."""
    return _listed("threads", "REPORTS")


def common() -> list[Report]:
    """The common faults and the healthy trainings, which have no `cause`, in the order of their numbers."""
    return _listed("common", "COMMON")


def _listed(kind: str, name: str) -> list[Report]:
    files = sorted(Path(__file__).parent.glob(f"{kind}_*.py"))
    modules = (importlib.import_module(f"galleries.reports.{file.stem}") for file in files)
    found: list[Report] = [each for module in modules for each in getattr(module, name, ())]
    return sorted(found, key=lambda each: each.number)
