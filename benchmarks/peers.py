"""The same fit watched by us, by `wandb.watch` and by a naive callback, block by block.

    python -m benchmarks.peers --workloads A

wandb comes with the dependency group `bench`; without it the other two are measured and the reason is written down.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from tempfile import TemporaryDirectory
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn

from benchmarks import output
from benchmarks.alternating import layout_for
from benchmarks.blocks import OFF, compare
from benchmarks.clock import fit
from benchmarks.modes import CallbackMode, Mode, everything, monitor_mode
from benchmarks.naive import NaiveMode
from benchmarks.workloads import SIZES, Training, Workload

OURS, WANDB = "lightning_hooks", "wandb.watch"
_PAUSE = 0.5  # seconds; wandb works on in a process of its own, and what comes next shall not pay for it


class Commit(Callback):
    """Ends wandb's step, as a logger does: without it the histograms of one step overwrite those of the last."""

    def __init__(self, run: Any) -> None:
        self.run = run

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.run.log({"trainer/global_step": trainer.global_step})


class WandbMode(CallbackMode):
    """`run.watch(log="all", log_freq=1)` in its blocks, `run.unwatch` in the others."""

    def __init__(self, run: Any) -> None:
        super().__init__(WANDB, Commit(run))
        self.run = run

    def start(self, trainer: Trainer) -> None:
        """Watch the model."""
        super().start(trainer)
        # The net, whose forward is called: parameters are logged in a forward hook, and Lightning does not call the module's.
        # idx: without it each call invents new names, of which wandb then has more and more.
        self.run.watch(_net(trainer), log="all", log_freq=1, idx=0)

    def stop(self, trainer: Trainer) -> None:
        """Take its hooks off."""
        self.run.unwatch(_net(trainer))
        self.gone(trainer)

    def finish(self, trainer: Trainer) -> None:
        """Nothing is left: `stop` was called when the last block ended."""


def _net(trainer: Trainer) -> nn.Module:
    module = trainer.lightning_module
    assert isinstance(module, Training)
    return module.net


@contextmanager
def wandb_mode() -> Iterator[WandbMode | str]:
    """wandb offline in a folder that is thrown away; or why there is none."""
    try:
        import wandb
    except ImportError as error:
        yield f"{error} (pip install --group bench)"
        return
    os.environ.setdefault("WANDB_SILENT", "true")
    with TemporaryDirectory() as folder:
        settings = wandb.Settings(console="off", x_disable_stats=True, x_disable_meta=True, silent=True)
        run = wandb.init(mode="offline", dir=folder, project="benchmarks", settings=settings)
        try:
            yield WandbMode(run)
        finally:
            run.finish()


def measure(workload: Workload, seconds: float, least: int, device: str = "cpu") -> list[dict[str, Any]]:
    """One fit in which all of them alternate.

    Args:
        workload: what is trained.
        seconds: about how long it may take were no step watched.
        least: rounds.
        device: `cpu` or `cuda`.
    """
    with wandb_mode() as found:
        others: list[Mode] = [NaiveMode()] if isinstance(found, str) else [NaiveMode(), found]
        names = (OFF, OURS, *(mode.name for mode in others))
        layout = layout_for(workload, names, seconds, least)
        module, loader = workload.make(layout.steps, device)
        ours = monitor_mode(OURS, everything(), layout)
        clock = fit(module, loader, layout, [ours, *others], pause=_PAUSE, options=workload.options, device=device)
        base = clock.blocks(OFF)
        row = {"workload": workload.name, "title": workload.title, "rounds": layout.rounds, "steps_in_block": layout.length}
        row["step_ms"] = statistics.median(statistics.median(block) for block in base) * 1e3
        rows = [{**row, "who": name, **asdict(compare(clock.blocks(name), base))} for name in names[1:]]
        if isinstance(found, str):
            rows.append({**row, "who": WANDB, "skipped": found})
        return rows


def main(arguments: list[str] | None = None) -> None:
    """Measure and write."""
    parser = output.arguments(main.__doc__ or "")
    parser.add_argument("--workloads", default="A,B,C,D")
    parser.add_argument("--seconds", type=float, default=60.0 if output.full() else 5.0)
    parser.add_argument("--sizes", choices=list(SIZES), default="cpu")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    options = parser.parse_args(arguments)
    rows = []
    for letter in options.workloads.split(","):
        workload = SIZES[options.sizes][letter]
        for row in measure(workload, options.seconds, 8 if output.full() else 3, options.device):
            rows.append(row)
            print(letter, row["who"], row.get("skipped") or f"{row['median']:.2f} (+{row['extra_ms']:.1f} ms)", flush=True)
        output.write(options.name or "peers", rows, options.out)


if __name__ == "__main__":
    main()
