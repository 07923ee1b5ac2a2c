"""`lightning-hooks match package.Module`: what the default rules match in a module that it builds."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lightning_hooks import StatsMonitor
from lightning_hooks.cli.main import main

MODULES = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, width: int, act: nn.Module | None = None) -> None:
        super().__init__()
        self.encoder, self.act = nn.Linear(4, width), act or nn.ReLU()


class Late(Net):
    def __init__(self) -> None:
        nn.Module.__init__(self)

    def configure_model(self):
        self.head = nn.Linear(3, 2)


class Broken(nn.Module):
    def __init__(self) -> None:
        raise ValueError("no data\\x1b[31m")


def small(width=3):
    return Net(width)


made = small()
number = 3
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cli_modules.py").write_text(MODULES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "cli_modules", raising=False)


def test_a_module_is_built_with_arguments_and_matched_by_the_default_rules(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["match", "cli_modules.Net", "width=3"]) == 0
    out = capsys.readouterr().out
    model = sys.modules["cli_modules"].Net(3)
    assert out == f"StatsMonitor() on cli_modules.Net\n{StatsMonitor().match(model)}\n"
    assert "encoder.weight" in out and "3×4" in out


@pytest.mark.parametrize("path", ["cli_modules.small", "cli_modules.made", "cli_modules.Late"])
def test_functions_and_modules_and_late_layers_are_matched_too(capsys: pytest.CaptureFixture[str], path: str) -> None:
    assert main(["match", path]) == 0
    assert ("head.weight" if path.endswith("Late") else "encoder.weight") in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["cli_modules.Net"],
            "module: cli_modules.Net() raises TypeError: Net.__init__() missing 1 required positional argument: 'width'. "
            "Its arguments are (width: int, act: torch.nn.modules.module.Module | None = None); give them as "
            "`lightning-hooks match cli_modules.Net NAME=VALUE`",
        ),
        (["cli_modules.Broken"], "module: cli_modules.Broken() raises ValueError: no data\\x1b[31m. Its arguments are ()"),
        (["cli_modules.Nett"], "module: cannot import 'cli_modules.Nett': cli_modules has no 'Nett' (did you mean 'Net'"),
        (["cli_modules.number"], "module: cli_modules.number is 3; name a class of modules"),
        (["builtins.dict"], "module: builtins.dict() gives {}, not a torch.nn.Module"),
        (["Net"], "module must be an import path such as 'package.module.name', got 'Net'"),
        (["cli_modules.Net", "3"], "module: arguments are given as NAME=VALUE, got '3'"),
        (["cli_modules.Net", "width=[3"], "module: the value of width is not valid YAML"),
        (["cli_modules.Net", "width={class_path: nowhere.Act}"], "class_path: cannot import 'nowhere.Act'"),
        (["digits.yaml"], "digits.yaml looks like a config: lightning-hooks match --config digits.yaml"),
    ],
)
def test_what_cannot_be_built_says_why(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert main(["match", *arguments]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"lightning-hooks: error: {message}") and len(said.splitlines()) == 1
