"""The second run of an update: it calls no hook of the optimizer, also of one whose step calls that of its base class."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from lightning_hooks.engine.recording import step_rerun
from lightning_hooks.engine.recording.batch_marks import BatchMarks
from lightning_hooks.engine.recording.explaining import Autopsy
from lightning_hooks.engine.recording.step_rerun import StepRerun
from lightning_hooks.engine.rerun.plain import PlainTraining
from lightning_hooks.recorder.options import RecorderOptions
from lightning_hooks.snapshot.generators import Generators


class Clipped(torch.optim.SGD):
    """An optimizer that does something before the step of its base class."""

    def step(self, closure: Any = None) -> Any:
        nn.utils.clip_grad_norm_(self.param_groups[0]["params"], 1.0)
        return super().step(closure)


def test_no_hook_runs_in_the_step_of_a_base_class(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    # From now on torch calls hooks in `SGD.step`, too.
    torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = Clipped(model.parameters(), lr=float("inf"))
    steps = Clipped.step, torch.optim.SGD.step
    # A list would be restored after the second run; a file is not.
    optimizer.register_step_post_hook(lambda *_: (tmp_path / "called").touch())
    model(torch.ones(1, 2)).sum().backward()
    recorder: Any = SimpleNamespace(marks=BatchMarks(), is_immediate=True)
    rerun = StepRerun(PlainTraining(model, lambda: [optimizer]), recorder, RecorderOptions())
    again = rerun.run("parameters", (), optimizer)
    assert again is not None and again.shown.reproduced and again.shown.verdict == "update"
    assert not (tmp_path / "called").exists()
    assert (Clipped.step, torch.optim.SGD.step) == steps
    optimizer.step()
    assert (tmp_path / "called").exists()


@pytest.mark.parametrize(
    ("results", "found", "notes"),
    [
        ([Autopsy(False, notes=("unread",)), Autopsy(True)], 1, ()),
        ([Autopsy(False, notes=("raised",), has_ended=False), Autopsy(True)], 0, ("raised",)),
        ([Autopsy(False, notes=("unread",)), Autopsy(False)], None, ("unread",)),
    ],
    ids=["the second", "the first does not end", "none"],
)
def test_batches_run_until_one_is_bad_or_does_not_end(
    monkeypatch: pytest.MonkeyPatch, results: list[Autopsy], found: int | None, notes: tuple[str, ...]
) -> None:
    model = nn.Linear(2, 1)
    remaining = iter(results)
    monkeypatch.setattr(step_rerun, "autopsy", lambda *_, **__: next(remaining))
    recorder: Any = SimpleNamespace(marks=BatchMarks(), is_immediate=True)
    batches: Any = [SimpleNamespace(batch=i, batch_idx=i, generators=Generators()) for i in range(2)]
    rerun = StepRerun(PlainTraining(model, lambda: []), recorder, RecorderOptions()).run("gradients", batches, None)
    assert rerun is not None and rerun.kept is (None if found is None else batches[found])
    assert (rerun.shown.notes, rerun.finite) == (notes, 2 if found is None else 0)
