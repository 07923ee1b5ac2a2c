"""Many fits in one process, with every callback of ours; prints what there is of everything after each thirty.

python -m tests.conformance._many_fits FITS FOLDER
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import shutil
import sys
import threading
import warnings
from pathlib import Path

import torch
from lightning.pytorch.loggers import TensorBoardLogger

from lightning_hooks.engine.running.hook_manager import HookManager
from lightning_hooks.engine.watching.observer import Observer
from lightning_hooks.hooks import OurHook
from tests.callbacks.models import Net, assert_clean, data, trainer_of
from tests.conformance._lifecycle_tools import all_ours


def resident() -> int:
    """Bytes of memory in use, after what can be given back has been."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def alive(kind: type) -> int:
    return sum(isinstance(thing, kind) for thing in gc.get_objects())


def main(fits: int, folder: Path, watched: bool = True) -> None:
    """Each fit has a trainer, callbacks and a logger of its own; every fifth a new model, so that models are let go too."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    model, batches = Net(), data(1)
    for number in range(1, fits + 1):
        if number % 5 == 0:
            model = Net()
        root = folder / str(number % 2)
        shutil.rmtree(root, ignore_errors=True)
        ours = all_ours(root) if watched else []
        trainer_of(root, *ours, logger=TensorBoardLogger(root)).fit(model, batches)
        model.made.clear()
        assert_clean(model)
        if number % 30 == 0:
            del ours
            now = {
                "fits": number,
                "memory": resident(),
                "threads": threading.active_count(),
                "tasks": len(os.listdir("/proc/self/task")),
                "files": len(os.listdir("/proc/self/fd")),
                "hooks": alive(OurHook),
                "hook managers": alive(HookManager),
                "observers": alive(Observer),
                "objects": len(gc.get_objects()),
            }
            print("AFTER", json.dumps(now), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), watched=len(sys.argv) < 4)
