"""A pytest plugin: a test that fails at `assert check(…).ok` shows the whole report.

pytest shortens the `repr` of a value in an assertion to 240 characters in one line. The plugin adds a section instead.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from lightning_hooks.checks.result import CheckReport, Ok


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: Any, call: Any) -> Generator[None, Any, Any]:
    """Add a section for each report without success in the frame that raised."""
    result = yield
    if call.excinfo is not None and call.excinfo.errisinstance(AssertionError):
        for report in _reports(call.excinfo.traceback[-1].frame.f_locals.values()):
            result.sections.append(("lightning_hooks check", str(report)))
    return result


def _reports(values: Any) -> list[CheckReport]:
    """The reports with a failure among local variables; pytest keeps the parts of an assertion among these."""
    found = [each.report if isinstance(each, Ok) else each for each in values]
    failed = {id(each): each for each in found if isinstance(each, CheckReport) and not each.ok}
    return list(failed.values())
