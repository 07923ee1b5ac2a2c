"""A fit that is sick on purpose, with a progress bar: `python -m tests.callbacks._sick_fit tqdm|rich FILE`.

The file gets what the monitor told, as JSON: the blocks and the lines in their order.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import RichProgressBar, TQDMProgressBar
from torch import Tensor

from lightning_hooks import HealthMonitor, StatsMonitor
from lightning_hooks.callbacks import _diagnosing
from lightning_hooks.callbacks._outlet import TrainerOutlet
from tests.callbacks.models import ValNet, data, trainer_of

EPOCHS, BATCHES = 2, 30


class Sick(ValNet):
    """The optimizer does not hold the last layer, and from step 45 on the loss is not finite."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        return loss * float("inf") if self.global_step >= 45 else loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.body[0].parameters(), lr=0.1)


class Recorded(TrainerOutlet):
    """Keeps what it is told."""

    told: list[Any] = []

    def tell(self, block: Any) -> None:
        self.told.append(block)
        super().tell(block)

    def tell_line(self, line: str) -> None:
        self.told.append(line)
        super().tell_line(line)


def main(name: str, told: Path) -> None:
    """Fit with a progress bar of this name, and write what the monitor told."""
    warnings.filterwarnings("ignore")
    _diagnosing.TrainerOutlet = Recorded  # type: ignore[misc]
    bar = {"tqdm": TQDMProgressBar, "rich": RichProgressBar}[name]()
    torch.manual_seed(0)
    trainer = trainer_of(
        told.parent, bar, StatsMonitor(loggers=[]), HealthMonitor(), max_epochs=EPOCHS, enable_progress_bar=True
    )
    trainer.fit(Sick(log=True), data(BATCHES), data(5))
    told.write_text(json.dumps(Recorded.told), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
