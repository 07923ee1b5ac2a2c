from pathlib import Path

import pytest

from lightning_hooks.checks import pytest_plugin

TEST = """
import torch
from torch import nn
from lightning_hooks import check


def test_of_a_user():
    model, batch = nn.Sequential(nn.Linear(4, 3), nn.Softmax(1)), (torch.randn(8, 4), torch.arange(8) % 3)
    assert check(model, batch, loss=nn.functional.cross_entropy).ok
"""


def test_a_failing_assertion_shows_the_whole_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "test_mine.py").write_text(TEST)
    options = ["-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), "-c", "/dev/null", str(tmp_path)]
    assert pytest.main(options, plugins=[pytest_plugin]) == 1
    said = capsys.readouterr().out
    assert "False: ActivationBeforeLoss/1" in said and "1 failed" in said
    section = said.partition("lightning_hooks check")[2]
    assert "PASS  StepRuns" in section and "FAIL  ActivationBeforeLoss       1: a softmax stands in front of" in section
