"""What all commands have in common: a help without imports that take seconds, one style of errors, and quiet ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lightning_hooks.cli import training
from lightning_hooks.cli.main import main
from lightning_hooks.cli.options import Parser
from tests.cli.written_fits import finding, write_fit
from tests.dashboard.runs import write_run

ROOT = Path(__file__).parents[2]
COMMANDS = ["fit", "match", "replay", "check", "explain", "info", "view", "report", "doctor", "diff", "compare", "baseline"]
MAIN = "import sys; from lightning_hooks.cli.main import main; sys.exit(main())"
SLOW = {"torch", "numpy", "tensorboard", "lightning", "pytorch_lightning", "werkzeug", "jsonargparse", "transformers"}


def code_of(arguments: list[str]) -> object:
    try:
        return main(arguments)
    except SystemExit as ended:
        return ended.code or 0


# -- the help --------------------------------------------------------------------------------------------------------------


def test_no_help_loads_what_takes_seconds() -> None:
    """In one process for all commands, which begins without these modules."""
    program = f"""
import contextlib, io, sys
from lightning_hooks.cli.main import main
loaded = {{}}
for command in {COMMANDS!r}:
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        main([command, "--help"])
    assert out.getvalue().startswith(f"usage: lightning-hooks {{command}} "), out.getvalue()
    loaded[command] = sorted({SLOW!r}.intersection(sys.modules))
print({{command: names for command, names in loaded.items() if names}})
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "{}\n", done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_placeholders_are_nouns_in_capitals(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of([command, "--help"]) == 0
    usage = capsys.readouterr().out.partition("\n\n")[0]
    words = re.findall(
        r"[^\s\[\]|]+", usage.replace(f"usage: lightning-hooks {command}", "").replace("options of LightningCLI", "")
    )
    placeholders = [word for word in words if not word.startswith("-") and word not in ("lightning-hooks", command, "...")]
    assert [word for word in placeholders if not re.fullmatch(r"[A-Z]+([/=][A-Z]+)?", word)] == []


def test_every_command_is_in_the_usage_with_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert {*re.findall(r"^  ([a-z]+) ", shown, re.MULTILINE)} == {*COMMANDS}
    codes = re.findall(r"^  (\d+) +(.+)$", shown, re.MULTILINE)
    assert [code for code, _ in codes] == ["0", "1", "2", "130", "141"]
    table = (ROOT / "docs" / "api.md").read_text(encoding="utf-8").partition("## Commands\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\| (\d+) \| (.+) \|$", table, re.MULTILINE) == codes, "docs/api.md says what `--help` says"


@pytest.mark.parametrize("command", ["doctor", "diff", "compare", "replay", "check"])
def test_the_help_says_what_the_exit_codes_mean(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of([command, "--help"]) == 0
    shown = capsys.readouterr().out.partition("exit codes:\n")[2]
    assert re.findall(r"^  (\d)  \S", shown, re.MULTILINE)[:2] == ["0", "1"]


# -- errors ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("typed", "meant"), [("docter", "doctor"), ("compar", "compare"), ("reply", "replay"), ("qqqq", "")])
def test_an_unknown_command_is_named_with_the_nearest_one(typed: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([typed]) == 2
    near = f" (did you mean {meant!r}?)" if meant else ""
    listed = ", ".join(COMMANDS)
    assert capsys.readouterr().err == f"lightning-hooks: error: unknown command {typed!r}{near}; there are {listed}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        *([command, "--no-such-option"] for command in COMMANDS),
        ["report"],
        ["replay"],
        ["diff", "one"],
        ["compare", "one"],
        ["baseline", "one"],
        ["view", "--port", "many"],
        ["report", "nowhere"],
        ["diff", "nowhere", "nowhere"],
        ["compare", "nowhere", "nowhere"],
        ["replay", "nowhere"],
        ["match", "no_such_package.Module"],
        ["check", "--time-limit", "long"],
    ],
    ids=" ".join,
)
def test_an_error_of_use_is_one_line_and_code_2(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert code_of(arguments) == 2
    said = capsys.readouterr()
    assert said.out == "" and len(said.err.splitlines()) == 1, said.err
    assert said.err.startswith("lightning-hooks: error: ")
    if "--no-such-option" in arguments:
        assert said.err.endswith(f"`lightning-hooks {arguments[0]} --help` lists the options\n")


# -- ends ------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with tables and a finding."""
    folder = tmp_path_factory.mktemp("runs") / "a"
    write_run(folder, range(3))
    write_fit(folder, finding())
    return folder


@pytest.mark.parametrize(
    "arguments",
    [
        ["info"],
        ["match", "torch.nn.Linear", "in_features=2", "out_features=3"],
        ["match", "--help"],
        ["view", "RUN", "--port", "0"],
        ["report", "RUN"],
        ["doctor", "RUN"],
        ["doctor", "RUN", "--follow"],
        ["diff", "RUN", "RUN"],
        ["--version"],
    ],
    ids=" ".join,
)
def test_a_pipe_that_nobody_reads_ends_each_command_quietly(
    run: Path, arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        assert main([str(run) if each == "RUN" else each for each in arguments]) == 141
        monkeypatch.undo()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("command", COMMANDS)
def test_ctrl_c_is_code_130_and_no_traceback(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Parser, "parse_known_args", interrupted)
    monkeypatch.setattr(training, "lightning_cli", interrupted)
    assert main([command, "--config=config.yaml"]) == 130
    assert capsys.readouterr() == ("", "")


def test_ctrl_c_in_a_fit_that_lightning_ends_is_code_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: Any) -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            sys.exit(1)

    monkeypatch.setattr(training, "lightning_cli", interrupted)
    assert main(["fit", "--config=config.yaml"]) == 130


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signal that Ctrl-C could be sent as")
@pytest.mark.parametrize(("arguments", "code"), [(["doctor", "--follow"], 2), (["view", "--port", "0"], 0)], ids=str)
def test_ctrl_c_ends_what_runs_until_then(tmp_path: Path, arguments: list[str], code: int) -> None:
    command, *options = arguments
    # A process that a shell has started in the background ignores this signal.
    hears = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    call = [sys.executable, "-c", hears + MAIN, command, str(tmp_path), *options]
    with subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        if command == "view":
            assert "Ctrl-C ends it" in process.stdout.readline()
        else:
            assert process.stderr.readline().startswith("Waiting for a HealthMonitor")
        process.send_signal(signal.SIGINT)
        process.wait(60)
        assert process.stderr.read() == "" and process.returncode in (code, 130)
