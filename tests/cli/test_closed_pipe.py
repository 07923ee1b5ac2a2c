"""A command whose output nobody reads any more ends quietly, as `cat` does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lightning_hooks.cli.main import main
from tests.cli.written_fits import finding, write_fit

CODE = "import sys; from lightning_hooks.cli import main; sys.exit(main())"


@pytest.mark.parametrize(
    ("merges", "unbuffered"), [(False, ""), (False, "1"), (True, "")], ids=["stdout", "no buffer", "stdout and stderr"]
)
@pytest.mark.parametrize(
    "arguments", [["--help"], ["doctor", "--help"], ["doctor", "RUN", "--json"], ["doctor", "RUN", "--all"]], ids=" ".join
)
def test_a_closed_pipe_is_no_error(
    tmp_path: Path, arguments: list[str], merges: bool, unbuffered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    write_fit(tmp_path, *(finding(number) for number in range(1, 300)))
    code, said = ended(tmp_path, arguments, subprocess.STDOUT if merges else subprocess.PIPE)
    # Without a buffer, argparse itself ignores the error of the help.
    assert said == b"" and (code == 141 or (code, arguments[1:], unbuffered) == (0, ["--help"], "1"))


@pytest.mark.parametrize(
    "arguments", [["no-such-command"], ["doctor", "nowhere"], ["doctor", "--no-such-option"]], ids=" ".join
)
def test_a_closed_pipe_for_an_error_is_no_other_error(tmp_path: Path, arguments: list[str]) -> None:
    code, said = ended(tmp_path, arguments, subprocess.STDOUT)
    assert code in (2, 141) and said == b""


def ended(run: Path, arguments: list[str], stderr: int) -> tuple[int, bytes]:
    """The exit code of a command whose standard output is closed, and what standard error has."""
    call = [sys.executable, "-c", CODE, *(str(run) if each == "RUN" else each for each in arguments)]
    with subprocess.Popen(call, stdout=subprocess.PIPE, stderr=stderr) as process:
        assert process.stdout is not None
        process.stdout.close()
        said = process.stderr.read() if process.stderr is not None else b""
    return process.returncode, said


def test_the_broken_pipe_of_a_training_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(arguments: list[str]) -> None:
        raise BrokenPipeError("of a worker")

    monkeypatch.setattr(sys.modules[main.__module__], "_fit", breaks)
    with pytest.raises(BrokenPipeError, match="of a worker"):
        main(["fit"])
