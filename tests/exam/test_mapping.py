"""Each script of the exam has its test."""

from __future__ import annotations

from importlib import import_module

from tests import exam


def test_each_script_has_its_test() -> None:
    rows = [line.split() for line in (exam.__doc__ or "").splitlines() if " test_" in line]
    assert len(rows) == 43 and {len(row) for row in rows} == {3}
    missing = [script for script, file, test in rows if not hasattr(import_module(f"tests.exam.{file}"), test)]
    assert missing == []
