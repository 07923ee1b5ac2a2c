from pathlib import Path

import pytest

TEST = """
import torch
from torch import nn
from lightning_hooks import check


def test_of_a_user():
    model, batch = nn.Sequential(nn.Linear(4, 3), nn.Softmax(1)), (torch.randn(8, 4), torch.arange(8) % 3)
    assert check(model, batch, loss=nn.functional.cross_entropy).ok
"""


SAID = "False: ActivationBeforeLoss: 1: a softmax stands in front of `cross_entropy`, which applies it again"


def said_of(text: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    # The sessions run in one process, which imports a module of one name once.
    (folder / f"test_of_{folder.name}.py").write_text(text)
    options = ["-q", "-p", "no:cacheprovider", "--rootdir", str(folder), "-c", "/dev/null"]
    options.append(str(folder))
    assert pytest.main(options) == 1
    said = capsys.readouterr().out
    assert "1 failed" in said
    return said


def test_a_failing_assertion_shows_each_failure_with_its_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    said = said_of(TEST, tmp_path, capsys)
    assert SAID in said and "PASS" not in said


def test_a_report_as_the_message_of_an_assertion_is_shown_in_full(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    text = TEST.replace("assert check(", "report = check(").replace(".ok", "\n    assert report.ok, str(report)")
    said = said_of(text, tmp_path, capsys)
    assert "AssertionError: PASS  StepRuns" in said and "FAIL  ActivationBeforeLoss    1: a softmax stands in front of" in said
