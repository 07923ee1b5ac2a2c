import subprocess
import sys
from pathlib import Path

TEST = """
import torch
from torch import nn
from lightning_hooks import check


def test_of_a_user():
    model, batch = nn.Sequential(nn.Linear(4, 3), nn.Softmax(1)), (torch.randn(8, 4), torch.arange(8) % 3)
    assert check(model, batch, loss=nn.functional.cross_entropy).ok
"""


def test_a_failing_assertion_shows_the_whole_report(tmp_path: Path):
    (tmp_path / "test_mine.py").write_text(TEST)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "lightning_hooks.checks.pytest_plugin", "-p", "no:cacheprovider"]
    said = subprocess.run([*command, tmp_path], capture_output=True, text=True, cwd=tmp_path).stdout
    assert "False: ActivationBeforeLoss/1" in said and "1 failed" in said
    section = said.partition("lightning_hooks check")[2]
    assert "PASS  StepRuns" in section and "FAIL  ActivationBeforeLoss       1: a softmax stands in front of" in section
