"""What a watched fit leaves on the disk: ours with its defaults, and `wandb.watch`, which comes with the group `bench`.

    python -m benchmarks.disk --workloads A,D

Each has two fits, one of more steps than the other. What a step takes is the difference of the bytes over that of the steps, so
that the head of a file and what a fit writes once do not count.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger

from benchmarks import output
from benchmarks.peers import OURS, WANDB, Commit
from benchmarks.workloads import SIZES, Training, Workload
from lightning_hooks import HealthMonitor, StatsMonitor

STEPS: Final = {OURS: (50, 100), WANDB: (10, 20)}
"""The lengths of the two fits. `StatsMonitor` writes histograms at every 50th step, `wandb.watch` at each."""


class Watch(Callback):
    """`run.watch(log="all", log_freq=1)` from the first step on."""

    def __init__(self, run: Any) -> None:
        self.run = run

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, Training)
        self.run.watch(pl_module.net, log="all", log_freq=1, idx=0)


def size(workload: Workload, who: str, steps: int) -> int:
    """The bytes that a fit leaves in an empty folder.

    Args:
        workload: what is trained.
        who: `OURS` or `WANDB`.
        steps: of the fit.

    Raises:
        ImportError: wandb is not installed.
    """
    with TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module, loader = workload.make(steps)
        if who == OURS:
            _fit(module, loader, [StatsMonitor(), HealthMonitor()], TensorBoardLogger(folder), folder, workload)
        else:
            import wandb

            settings = wandb.Settings(console="off", x_disable_stats=True, x_disable_meta=True, silent=True)
            run = wandb.init(mode="offline", dir=folder, project="benchmarks", settings=settings)
            _fit(module, loader, [Watch(run), Commit(run)], False, folder, workload)
            run.finish()
        return sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file() and not path.is_symlink())


def _fit(module: Training, loader: Any, callbacks: list[Callback], logger: Any, folder: str, workload: Workload) -> None:
    trainer = Trainer(
        max_epochs=1,
        logger=logger,
        callbacks=callbacks,
        accelerator="cpu",
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        default_root_dir=folder,
        **workload.options,
    )
    trainer.fit(module, loader)


def measure(letter: str, who: str, sizes: str = "cpu") -> dict[str, Any]:
    """The row of a workload and of who watches it.

    Args:
        letter: of the workload.
        who: `OURS` or `WANDB`.
        sizes: a key of `SIZES`.
    """
    workload = SIZES[sizes][letter]
    row: dict[str, Any] = {"workload": workload.name, "title": workload.title, "who": who}
    few, many = STEPS[who]
    try:
        least, most = size(workload, who, few), size(workload, who, many)
    except ImportError as error:
        return {**row, "skipped": f"{error} (pip install --group bench)"}
    return {**row, "bytes_per_step": (most - least) / (many - few), "once": least - few * (most - least) / (many - few)}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and write."""
    parser = output.arguments("Measure and write.")
    parser.add_argument("--workloads", default="A,B,C,D")
    parser.add_argument("--sizes", choices=list(SIZES), default="cpu")
    options = parser.parse_args(arguments)
    rows = []
    for letter in options.workloads.split(","):
        for who in STEPS:
            row = output.in_new_process(measure, letter, who, options.sizes)
            rows.append(row)
            print(letter, who, row.get("skipped") or f"{row['bytes_per_step'] / 1e3:.1f} kB a step", flush=True)
        output.write(options.name or "disk", rows, options.out)


if __name__ == "__main__":
    main()
