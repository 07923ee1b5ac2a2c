"""A fit on a device in which waiting for the device is an error."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.utils.data import DataLoader

from tests.conformance._tools import loader


class Strict(Callback):
    """Makes waiting an error from the fourth batch on, because the first ones compile.

    Args:
        device: `cuda`, or `cpu` to do nothing.
        without_waiting: the fixture of this name.
        until: the batch at whose start waiting is allowed again, because the end of a fit may wait.
    """

    def __init__(self, device: str, without_waiting: Callable[[], AbstractContextManager[None]], until: int) -> None:
        self.device, self.without_waiting, self.until = device, without_waiting, until

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if batch_idx == 3:
            self.context = self.without_waiting()
            self.context.__enter__()
        elif batch_idx == self.until:
            self.context.__exit__(None, None, None)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if self.device == "cuda":
            torch.cuda.set_sync_debug_mode("default")


def batches_on(device: str, count: int) -> DataLoader[Any]:
    """So many batches that lie on the device from the start."""
    return loader(*((torch.randn(4, 6, device=device), torch.randn(4, 3, device=device)) for _ in range(count)))
