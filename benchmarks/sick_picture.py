"""The picture of a sick run for the README, by headless Chromium: `python -m benchmarks.sick_picture` writes docs/sick.png."""

from __future__ import annotations

import argparse
import tempfile
import warnings
from pathlib import Path

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import TensorBoardLogger

from examples.sick import SICK, batches
from lightning_hooks import HealthMonitor, StatsMonitor
from tests.dashboard.browser import chromium, opened, serving

ROOT = Path(__file__).parents[1]


def write_run(folder: Path, name: str, steps: int = 150) -> None:
    """Train one of the sick trainings and leave its event file and journal in `folder/sick`."""
    torch.manual_seed(0)
    trainer = Trainer(
        max_steps=steps,
        accelerator="cpu",
        logger=TensorBoardLogger(folder, name="sick", version=""),
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        callbacks=[StatsMonitor(), HealthMonitor()],
    )
    trainer.fit(SICK[name](), batches())


def write_picture(logdir: Path, out: Path, width: int = 1280, height: int = 540) -> None:
    """Save what a person sees first of the run in a log directory, with 1.5 pixels to a point."""
    size = {"width": width, "height": height}
    with chromium() as browser, serving(logdir) as url, opened(browser, url, viewport=size, device_scale_factor=1.5) as page:
        page.wait_for_timeout(2000)  # Wait until curves are drawn.
        page.screenshot(path=out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--training",
        default="an optimizer that holds only the head",
        choices=[*SICK],
        help="which of the trainings of examples.sick",
    )
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "sick.png")
    args = parser.parse_args()
    warnings.filterwarnings("ignore", module="lightning")
    with tempfile.TemporaryDirectory() as folder:
        write_run(Path(folder), args.training)
        write_picture(Path(folder), args.out)


if __name__ == "__main__":
    main()
