"""The progress bar of slow commands: only in a terminal, on standard error, and only after a while."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lightning_hooks.cli import progress
from lightning_hooks.cli.progress import progress_bar, silent
from tests.callbacks.terminal import ROOT, Screen, run_in_terminal

PROGRAM = """
import sys, time
from lightning_hooks.cli import progress
progress._AFTER = float(sys.argv[1])
with progress.progress_bar("Reading steps") as bar:
    bar(3, 10)
    time.sleep(float(sys.argv[2]))
print("done")
"""
has_terminals = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudo-terminals")


@has_terminals
def test_in_a_terminal_a_bar_is_drawn_and_gone_in_the_end() -> None:
    pytest.importorskip("rich")
    output = run_in_terminal([sys.executable, "-c", PROGRAM, "0", "1"], 80)
    assert "Reading steps" in output and "3/10" in output
    assert [line for line in Screen(80).feed(output).text if line] == ["done"]


@has_terminals
def test_a_quick_command_draws_no_bar() -> None:
    assert run_in_terminal([sys.executable, "-c", PROGRAM, "60", "0"], 80) == "done\r\n"


def test_nothing_is_shown_where_the_output_is_piped() -> None:
    command = [sys.executable, "-c", PROGRAM, "0", "0.1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert (done.stdout, done.stderr) == ("done\n", "")


@pytest.mark.parametrize("missing", ["terminal", "rich"])
def test_without_a_terminal_or_rich_the_bar_is_silent(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    monkeypatch.setattr(progress, "_is_terminal", lambda stream: missing == "rich")
    if missing == "rich":
        monkeypatch.setitem(sys.modules, "rich.console", None)
    with progress_bar("Reading steps") as bar:
        assert bar is silent


def test_a_process_without_standard_error_has_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    with progress_bar("Reading steps") as bar:
        assert bar is silent
