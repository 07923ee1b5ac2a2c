"""Trains until a signal ends it: `python -m galleries.recorder.terminated FOLDER`. Prints a line when step 5 begins."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback

from galleries.recorder.fault import Case, Fault, fit
from galleries.recorder.parts import batches
from galleries.recorder.state_faults import plain
from lightning_hooks import FlightRecorder


class Under(Callback):
    """Says that the training is under way, and makes a step last some milliseconds."""

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 5:
            print("under way", flush=True)
        time.sleep(0.02)


if __name__ == "__main__":
    endless = Fault("endless", "Trains for minutes.", lambda: Case(plain(), batches(count=10_000)), steps=10_000)
    fit(endless, Path(sys.argv[1]), [Under(), FlightRecorder()])
