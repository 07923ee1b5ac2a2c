"""Each command that a message, a page of the documentation or an example names exists, with the options that are named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lightning_hooks.cli.main import _USAGE, main

ROOT = Path(__file__).parents[2]
PATTERNS = "*.md", "Makefile", "docs/*.md", "configs/**/*.yaml", "examples/*.py", "lightning_hooks/**/*.py", "**/page/*.js"
COMMANDS = set(re.findall(r"^  ([a-z]+) ", _USAGE, re.MULTILINE))
NAMED = re.compile(r"\blightning-hooks ([a-z]+)([^`\"\n#,]*)")


def named() -> dict[str, set[str]]:
    """The options that are named beside each command."""
    found: dict[str, set[str]] = {}
    for path in (path for pattern in PATTERNS for path in ROOT.glob(pattern)):
        for command, rest in NAMED.findall(path.read_text(encoding="utf-8")):
            found.setdefault(command, set()).update(re.findall(r"(?<![\w-])--[a-z][a-z-]+", rest))
    return found


def test_every_named_command_exists() -> None:
    assert {"doctor", "diff", "compare"} <= COMMANDS
    assert sorted(set(named()) - COMMANDS) == []


@pytest.mark.parametrize("command", sorted(COMMANDS - {"fit", "match", "info"}))
def test_every_named_option_exists(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        main([command, "--help"])
    except SystemExit as ended:
        assert not ended.code
    shown = capsys.readouterr().out
    assert [option for option in sorted(named().get(command, set())) if option not in shown] == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["findings", "a"], "unknown command 'findings'"), (["diff", "--health", "a", "b"], "unrecognized arguments: --health")],
)
def test_an_old_spelling_is_an_error(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code: object = main(arguments)
    except SystemExit as ended:
        code = ended.code
    assert code == 2 and said in capsys.readouterr().err
