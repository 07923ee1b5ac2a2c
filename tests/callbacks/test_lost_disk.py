"""A folder that goes or a disk that fills while a fit writes: the fit ends as usual, with one warning for each file."""

from __future__ import annotations

import io
import resource
import shutil
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from torch import Tensor

from lightning_hooks import ActivationCapture, FlightRecorder, HealthMonitor, StatsMonitor, assert_no_hooks
from tests.callbacks.models import Net, data, trainer_of

STEPS = 12
OUR_WORDS = (
    *("stopped watching", "cannot be written", "was removed", "is not complete", "not shown", "the capture", "no report"),
    "failed when",
)
"""What our warnings about a disk say."""


class Breaks(Callback):
    """Removes a folder or fills the disk.

    Args:
        how: `removed` or `full`.
        when: `in the fit`, or `at its end`: after the last batch, before anything is written for the end.
        folder: is removed.
    """

    def __init__(self, how: str, when: str, folder: Path) -> None:
        self.how, self.when, self.folder = how, when, folder

    def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
        if self.when == "in the fit" and trainer.global_step == 5:
            self.happen()

    def on_train_epoch_end(self, *args: Any) -> None:
        if self.when == "at its end":
            self.happen()

    def happen(self) -> None:
        if self.how == "removed":
            shutil.rmtree(self.folder)
        else:  # no file can grow; nothing else of the process notices
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


class Sick(Net):
    """The loss is not finite in the last batch; without dropout."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        return loss * torch.nan if batch_idx == STEPS - 1 else loss


def capture(folder: Path) -> list[Callback]:
    return [ActivationCapture("body.0", every_n_steps=1, batches_per_file=5, folder=folder)]


WRITERS: dict[str, Callable[[Path], list[Callback]]] = {
    "StatsMonitor": lambda folder: [StatsMonitor(logdir=folder, on_error="warn")],
    "HealthMonitor": lambda folder: [HealthMonitor(logdir=folder, every_n_steps=1)],
    "HealthMonitor beside": lambda folder: [StatsMonitor(logdir=folder, on_error="warn"), HealthMonitor()],
    "journal alone": lambda folder: [HealthMonitor(loggers=[], every_n_steps=1)],
    "FlightRecorder": lambda folder: [FlightRecorder(logdir=folder)],
    "ActivationCapture": capture,
    "report": lambda folder: [StatsMonitor(logdir=folder, on_error="warn", report=folder / "report.html")],
}
EVENTS = {
    "in the fit": "a StatsMonitor stopped watching after",
    "at its end": "findings are not shown in the event file any more",
}
JOURNAL = {"removed": "findings.jsonl was removed while the fit ran", "full": "summary.json cannot be written"}


def expected(writer: str, how: str, when: str) -> list[str]:
    """What is said of each file that is written after the folder went or the disk was full."""
    stopped = [EVENTS[when]] if when == "in the fit" else []
    return {
        "StatsMonitor": stopped,
        "HealthMonitor": [EVENTS[when].replace("StatsMonitor", "HealthMonitor"), JOURNAL[how]],
        "HealthMonitor beside": [EVENTS[when], JOURNAL[how]],
        "journal alone": [JOURNAL[how]],
        # A record makes its folder. In the last batch the record is written before the fit ends.
        "FlightRecorder": ["the flight record is not complete"] if (how, when) == ("full", "in the fit") else [],
        "ActivationCapture": ["the run continues: train-rank0-"],
        "report": [*stopped, "there is no report of this fit"],
    }[writer]


def fit(root: Path, model: Net, *callbacks: Callback) -> tuple[dict[str, Tensor], list[str]]:
    """The weights, and what our warnings said."""
    torch.manual_seed(0)
    for module in model.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    trainer = trainer_of(root, *callbacks, logger=False)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with warnings.catch_warnings(record=True) as caught, redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("always")
            trainer.fit(model, data(STEPS))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert_no_hooks(model)
    assert trainer.global_step == STEPS
    said = [str(warning.message) for warning in caught]
    return {name: each.clone() for name, each in model.state_dict().items()}, [
        s for s in said if any(w in s for w in OUR_WORDS)
    ]


@pytest.mark.parametrize("when", ["in the fit", "at its end"])
@pytest.mark.parametrize("how", ["removed", "full"])
@pytest.mark.parametrize("writer", WRITERS)
def test_the_fit_ends_with_the_weights_of_a_bare_one(tmp_path: Path, writer: str, how: str, when: str) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    make = Sick if writer == "FlightRecorder" else Net
    bare, _ = fit(folder, make())
    weights, said = fit(folder, make(), *WRITERS[writer](folder), Breaks(how, when, folder))
    torch.testing.assert_close(weights, bare, rtol=0, atol=0, equal_nan=True)
    wanted = expected(writer, how, when)
    assert len(said) == len(wanted) and all(each in message for each, message in zip(wanted, said, strict=True)), said


@pytest.mark.parametrize("how", ["removed", "full"])
def test_with_raise_the_error_comes_once_and_names_the_file(tmp_path: Path, how: str) -> None:
    folder, model = tmp_path / "run", Net()
    with pytest.raises(OSError, match="events.out.tfevents"):
        fit(tmp_path, model, StatsMonitor(logdir=folder), Breaks(how, "in the fit", folder))
    assert_no_hooks(model)
