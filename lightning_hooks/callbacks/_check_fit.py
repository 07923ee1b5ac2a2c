"""A fit that is made for a check: it takes the first batch of a loader and ends before its first step."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from torch import nn

from lightning_hooks.callbacks._own_fit import at_first_batch
from lightning_hooks.callbacks._trainer_training import dummy_logger, package_of
from lightning_hooks.checks.result import CheckReport
from lightning_hooks.engine.rerun.training import Training
from lightning_hooks.errors import RuleError, shown
from lightning_hooks.snapshot.generators import Generators
from lightning_hooks.snapshot.reach import ReachOfData
from lightning_hooks.snapshot.snapshot import Snapshot

Run = Callable[[Training, Any], CheckReport]
_ACCELERATORS: Final = {"CPUAccelerator": "cpu", "CUDAAccelerator": "gpu", "MPSAccelerator": "mps"}


def check_in_own_fit(trainer: Any, module: Any, data: Any, run: Run) -> CheckReport:
    """Check the first batch that a fit would train.

    A Trainer with the accelerator, precision and clipping of the given one, with one device, without its callbacks and with
    loggers that do nothing, begins a fit, which ends before its first step.

    Args:
        trainer: whose settings count.
        module: the LightningModule.
        data: a data module, a loader, or None.
        run: runs the checks.

    Raises:
        RuleError: the module is none of Lightning, or the loader gives no batch.
    """
    if not isinstance(module, nn.Module) or not hasattr(module, "training_step"):
        raise RuleError(f"check: after a Trainer comes a LightningModule, got {shown(module)}")
    randomness, snapshot = Generators(), Snapshot([module])
    of_data = Snapshot([data], ReachOfData())
    is_module = hasattr(data, "train_dataloader")
    given = {"datamodule": data} if is_module else {} if data is None else {"train_dataloaders": data}
    try:
        # The real fit repeats the warnings of Lightning.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            report = at_first_batch(
                partial(_own_trainer, trainer),
                partial(_fit, module, given),
                lambda training, batch, batch_idx: run(training, batch),
            )
    finally:
        snapshot.restore()
        of_data.restore()
        randomness.restore()
    if report is None:
        raise RuleError("check: the loader gives no batch")
    return report


def _fit(module: Any, given: dict[str, Any], own: Any) -> None:
    own.fit(module, **given)


def _own_trainer(trainer: Any, callback: Any) -> Any:
    accelerator = _ACCELERATORS.get(type(trainer.accelerator).__name__, "auto")
    device = trainer.strategy.root_device
    devices: Any = [device.index or 0] if accelerator in ("gpu", "auto") and device.type != "cpu" else 1
    options: dict[str, Any] = {
        "accelerator": accelerator,
        "devices": devices,
        "logger": [dummy_logger(trainer) for _ in trainer.loggers] or False,
        "callbacks": [callback],
        "max_epochs": trainer.max_epochs,
        "max_steps": trainer.max_steps,
        "limit_train_batches": trainer.limit_train_batches,
        "limit_val_batches": 0,
        "num_sanity_val_steps": 0,
        "accumulate_grad_batches": trainer.accumulate_grad_batches,
        "gradient_clip_val": trainer.gradient_clip_val,
        "gradient_clip_algorithm": trainer.gradient_clip_algorithm,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
        "reload_dataloaders_every_n_epochs": 0,
        "default_root_dir": trainer.default_root_dir,
        "precision": trainer.precision,
    }
    return importlib.import_module(package_of(trainer)).Trainer(**options)
