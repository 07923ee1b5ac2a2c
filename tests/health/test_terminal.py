"""Text for a stream: plain in a file; in a terminal as wide as it is, and in colours if rich is installed."""

import builtins
import io

import pytest

from lightning_hooks.health.terminal import block_for, line_for
from lightning_hooks.health.text import as_text, block_of_finding
from tests.health.test_causes import finding

LINE = "Healthy: 29 rules found nothing in 20 steps; 2 could not run."


class Terminal(io.StringIO):
    """Says that it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def narrow(monkeypatch):
    monkeypatch.setenv("COLUMNS", "48")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)


def test_a_file_gets_plain_text_of_the_usual_width(narrow):
    block = block_of_finding(finding("DeadUnits"))
    assert block_for(block, io.StringIO()) == as_text([block]) and line_for(LINE, io.StringIO()) == LINE


def test_a_terminal_gets_lines_that_fit(narrow, monkeypatch):
    pytest.importorskip("rich")
    block = block_of_finding(finding("DeadUnits"))
    lines = as_text([block], 48).splitlines()
    assert block_for(block, Terminal()).splitlines() == [f"\x1b[1;33m{lines[0]}\x1b[0m", *lines[1:]]
    assert line_for(LINE, Terminal()).splitlines() == ["Healthy: 29 rules found nothing in 20 steps; 2", "  could not run."]
    monkeypatch.setenv("TERM", "dumb")
    assert block_for(block, Terminal()) == as_text([block], 48)


def test_a_stream_before_a_terminal_is_as_wide(narrow, monkeypatch):
    class Proxy(io.StringIO):
        """Stands before a stream, as rich 13.0 does, and does not say that it is a terminal."""

        rich_proxied_file = Terminal()

    monkeypatch.setenv("TERM", "dumb")
    assert line_for(LINE, Proxy()) == line_for(LINE, Terminal()) != LINE


def test_a_terminal_of_any_width_gets_all_words(narrow, monkeypatch):
    block = block_of_finding(finding("DeadUnits"))
    monkeypatch.setenv("LINES", "24")
    for columns in ("0", "1", "39", "110", "1000"):
        monkeypatch.setenv("COLUMNS", columns)
        monkeypatch.setenv("TERM", "dumb")
        assert block_for(block, Terminal()).split() == as_text([block]).split()


def test_without_rich_a_terminal_gets_plain_text(narrow, monkeypatch):
    block, real = block_of_finding(finding("DeadUnits")), builtins.__import__

    def without_rich(name, *args, **options):
        if name.startswith("rich"):
            raise ImportError(name)
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", without_rich)
    assert block_for(block, Terminal()) == as_text([block], 48)


@pytest.mark.parametrize("stream", [None, object()], ids=["none", "without isatty"])
def test_a_stream_that_does_not_say_what_it_is_gets_plain_text(stream):
    block = block_of_finding(finding("DeadUnits"))
    assert block_for(block, stream) == as_text([block]) and line_for(LINE, stream) == LINE
