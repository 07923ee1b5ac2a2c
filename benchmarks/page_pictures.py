"""Pictures of the page with a sick run, by headless Chromium: `python -m benchmarks.page_pictures` writes them to docs/.

`docs/sick.png` is for the README, the others show a view each for docs/dashboard.md.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import TensorBoardLogger

from examples.sick import STEPS, TRAININGS, batches
from lightning_hooks import HealthMonitor, StatsMonitor, Watch
from lightning_hooks.plan.defaults import DEFAULT_WATCH
from tests.dashboard.browser import chromium, opened, serving

ROOT: Final = Path(__file__).parents[1]
SCALE: Final = 1.25


@dataclass(frozen=True)
class Picture:
    """A picture of the page.

    Args:
        name: of the file in docs/, without `.png`.
        trainings: keys of `examples.sick.TRAININGS`: the run that is shown, and the runs with which it is compared.
        address: the fragment of the address, which names the view.
        height: of the window in CSS pixels; the width is 1,280.
        histograms: the runs have histograms of outputs.
    """

    name: str
    trainings: tuple[str, ...]
    address: str
    height: int
    histograms: bool = False


_HIGH: Final = "rate_too_high"
PICTURES: Final = (
    Picture("sick", ("forgotten",), "view=overview", 560),
    Picture("page-overview", (_HIGH,), "view=overview", 760),
    Picture("page-map", (_HIGH,), "view=map&tensor=grad&stat=norm", 530),
    Picture("page-against", (_HIGH, "healthy"), "view=map&tensor=update&stat=ratio&map=reference", 560),
    Picture("page-row", (_HIGH,), "view=row&tensor=output&stat=std&row=encoder.1", 680),
    Picture("page-step", (_HIGH, "healthy"), "view=step&tensor=grad&stat=norm&step=5", 580),
    Picture("page-histograms", (_HIGH,), "view=sheet&tensor=output", 560, histograms=True),
)


def write_run(folder: Path, name: str, histograms: bool) -> None:
    """Train one of the trainings of `examples.sick` and leave its files in `folder/name`."""
    torch.manual_seed(0)
    drawn = Watch(modules="*", select="leaves", tensors="output", stats="histogram", every_n_steps=1)
    monitor = StatsMonitor([*DEFAULT_WATCH, drawn], histogram_every_n_steps=1) if histograms else StatsMonitor()
    trainer = Trainer(
        max_steps=STEPS,
        accelerator="cpu",
        logger=TensorBoardLogger(folder, name, version=""),
        log_every_n_steps=5,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        callbacks=[monitor, HealthMonitor()],
    )
    _, make = TRAININGS[name]
    trainer.fit(make(), batches())


def write_picture(browser: Any, logdir: Path, picture: Picture, folder: Path) -> None:
    """Save what a person sees first of a view, with `SCALE` pixels to a CSS pixel.

    Args:
        browser: from `chromium()`.
        logdir: holds the runs as folders that are named like the trainings.
        picture: what to show.
        folder: where to save it.
    """
    out = folder / f"{picture.name}.png"
    size = {"width": 1280, "height": picture.height}
    with serving(logdir) as url:
        run, *others = picture.trainings
        where = f"{url}#run={run}&other={'%0A'.join(others)}&{picture.address}"
        with opened(browser, where, viewport=size, device_scale_factor=SCALE) as page:
            page.wait_for_timeout(2000)  # Wait until curves and maps are drawn.
            page.screenshot(path=out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=[each.name for each in PICTURES], help="write this picture alone")
    parser.add_argument("--out", type=Path, default=ROOT / "docs", help="the folder for the pictures")
    args = parser.parse_args()
    warnings.filterwarnings("ignore", module="lightning")
    pictures = [each for each in PICTURES if args.only in (None, each.name)]
    with tempfile.TemporaryDirectory() as temporary, chromium() as browser:
        for picture in pictures:
            logdir = Path(temporary) / f"histograms-{picture.histograms}"
            for training in picture.trainings:
                if not (logdir / training).exists():
                    write_run(logdir, training, picture.histograms)
            write_picture(browser, logdir, picture, args.out)


if __name__ == "__main__":
    main()
