"""A file in the current folder never takes the place of an installed package, whatever the command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lightning_hooks.cli.main import main

USER_CODE = ["fit", "match", "check", "replay"]
SIZES = ["in_features=2", "out_features=3"]
OTHERS = ["explain", "info", "view", "report", "diff", "baseline", "doctor", "compare"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


@pytest.mark.parametrize("command", [*USER_CODE, *OTHERS])
def test_only_commands_with_code_of_the_user_search_the_current_folder_and_last(command: str, folder: Path) -> None:
    before = list(sys.path)
    try:
        main([command, "--help"])
    except SystemExit as ended:
        assert not ended.code
    assert sys.path == [*before, *[str(folder)] * (command in USER_CODE)]


def test_every_command_is_listed_here(capsys: pytest.CaptureFixture[str]) -> None:
    main(["no-such-command"])
    assert set(capsys.readouterr().err.partition("there are ")[2].strip().split(", ")) == {*USER_CODE, *OTHERS}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "safe"),
    [
        (["-m", "lightning_hooks", "info"], ""),
        (["-c", "from lightning_hooks.cli import main; main()", "match", "torch.nn.Linear", *SIZES], "1"),
    ],
)
def test_a_file_with_the_name_of_a_package_is_not_imported(call: list[str], safe: str, folder: Path) -> None:
    for name in ("numpy", "torch", "tensorboard"):
        (folder / f"{name}.py").write_text(f"raise SystemExit('{name}.py of the current folder was imported')")
    # With PYTHONSAFEPATH, Python itself leaves the current folder off the path, as the console script does.
    environment = {**os.environ, "PYTHONSAFEPATH": safe}
    done = subprocess.run([sys.executable, *call], env=environment, capture_output=True, text=True)
    assert (done.returncode, "was imported" in done.stderr) == (0, False), done.stderr


def test_a_module_of_the_user_is_found_in_the_current_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = "import torch\n\ndef net(size):\n    return torch.nn.Sequential(torch.nn.Linear(size, 2))\n"
    (folder / "module_of_the_user.py").write_text(code)
    assert main(["match", "module_of_the_user.net", "size=3"]) == 0
    assert "StatsMonitor() on module_of_the_user.net" in capsys.readouterr().out
    sys.modules.pop("module_of_the_user")
