"""A record of a training of the gallery names the same when its step is replayed."""

from __future__ import annotations

import warnings
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from torch import nn

from galleries.recorder.catalogue import faulty
from galleries.recorder.fault import Fault, fit
from lightning_hooks import FlightRecorder
from lightning_hooks.callbacks._replay import Kept, replay
from lightning_hooks.engine.recording.saving import load_batch, load_generators, load_optimizers, load_weights

SAMPLE = (
    "softmax-of-nothing",
    "half-matmul-overflows",
    "third-call",
    "gradient-penalty",
    "nan-in-the-batch",
    "last-batch-smaller",
)


@pytest.mark.parametrize("fault", [each for each in faulty() if each.name in SAMPLE], ids=lambda fault: fault.name)
def test_a_replay_names_what_the_gallery_says(fault: Fault, tmp_path: Path) -> None:
    recorder = FlightRecorder(weights=True, logdir=tmp_path)
    with suppress(Exception):
        fit(fault, tmp_path, [recorder])
    record, folder = recorder.record, recorder.folder
    assert record is not None and folder is not None
    kept = Kept(
        load_batch(folder).value,
        record.context,
        load_generators(folder),
        partial(_load, folder=folder),
        load_optimizers(folder).value,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        replayed = replay(fault.build().module, kept)
    assert replayed.is_reproducible and replayed.is_reproduced
    found, operation = replayed.found, replayed.found.operation
    if fault.failure:
        assert replayed.first.error.startswith(f"{fault.failure}: ")
        return
    named = ("", "") if operation is None else (operation.name, operation.node)
    assert (found.verdict, found.module, found.call, *named) == (
        fault.verdict,
        fault.module,
        fault.call,
        fault.operation,
        fault.node,
    )


def _load(model: nn.Module, folder: Path) -> None:
    load_weights(model, folder)
