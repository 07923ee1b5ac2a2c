"""A monitor, a capture, a second monitor and a hook of a user's, each alone and all together, block by block in one fit.

    python -m benchmarks.readers --workloads A,D

They read the same tensors: what they take together is to be no more than the sum of what each takes alone.
"""

from __future__ import annotations

import statistics
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lightning.pytorch import Callback
from torch import nn

from benchmarks import output
from benchmarks.alternating import layout_for
from benchmarks.blocks import OFF, Layout, compare
from benchmarks.clock import fit
from benchmarks.modes import CallbackMode, everything, watched_steps
from benchmarks.workloads import SIZES, Workload
from lightning_hooks import ActivationCapture, CustomHooks, Hook, StatsMonitor, Watch

READERS = ("monitor", "capture", "second monitor", "hook")
TOGETHER = "together"


def _look(module: nn.Module, args: Any, result: Any) -> None:
    """A hook of a user's that is called with a result."""


def reader(name: str, layout: Layout, mode: str, folder: Path) -> Callback:
    """One of the readers, for the steps of a mode.

    Args:
        name: one of `READERS`.
        layout: of the run.
        mode: in whose blocks it reads.
        folder: for what a capture writes.
    """
    steps = watched_steps(mode, layout)
    if name == "capture":
        path = folder / mode.replace(" ", "_")
        return ActivationCapture("*", select="leaves", reduce="norm", every_n_steps=steps, folder=path, strict=False)
    if name == "hook":
        return CustomHooks([Hook(_look, kind="forward", modules="*", select="leaves", every_n_steps=steps)])
    rules = everything()
    if name == "second monitor":
        rules = [Watch(modules="*", select="leaves", tensors=("output", "output_grad"), stats=("norm", "mean"))]
    return StatsMonitor(rules, every_n_steps=steps, prefix=f"{mode}/{name}/".replace(" ", "_"))


def measure(workload: Workload, seconds: float, least: int, device: str = "cpu") -> list[dict[str, Any]]:
    """One fit in which each reader, all together and nothing alternate.

    Args:
        workload: what is trained.
        seconds: about how long it may take were no step watched.
        least: rounds.
        device: `cpu` or `cuda`.
    """
    layout = layout_for(workload, (OFF, *READERS, TOGETHER), seconds, least)
    module, loader = workload.make(layout.steps, device)
    with TemporaryDirectory() as path:
        folder = Path(path)
        modes = [CallbackMode(name, reader(name, layout, name, folder)) for name in READERS]
        modes.append(CallbackMode(TOGETHER, *(reader(name, layout, TOGETHER, folder) for name in READERS)))
        clock = fit(module, loader, layout, modes, options=workload.options, device=device)
    base = clock.blocks(OFF)
    row = {"workload": workload.name, "title": workload.title, "rounds": layout.rounds, "steps_in_block": layout.length}
    row["step_ms"] = statistics.median(statistics.median(block) for block in base) * 1e3
    return [{**row, "who": name, **asdict(compare(clock.blocks(name), base))} for name in (*READERS, TOGETHER)]


def share_of_sum(rows: list[dict[str, Any]]) -> float:
    """What all take together over the sum of what each takes alone.

    Args:
        rows: of one workload.

    Example:
        >>> rows = [{"who": name, "extra_ms": 1.0} for name in READERS] + [{"who": TOGETHER, "extra_ms": 3.0}]
        >>> share_of_sum(rows)
        0.75
    """
    extra = {row["who"]: row["extra_ms"] for row in rows}
    return float(extra[TOGETHER] / sum(extra[name] for name in READERS))


def main(arguments: list[str] | None = None) -> None:
    """Measure and write."""
    parser = output.arguments(main.__doc__ or "")
    parser.add_argument("--workloads", default="A,D")
    parser.add_argument("--seconds", type=float, default=40.0 if output.full() else 10.0)
    parser.add_argument("--sizes", choices=list(SIZES), default="cpu")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    options = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    for letter in options.workloads.split(","):
        found = measure(SIZES[options.sizes][letter], options.seconds, 12 if output.full() else 6, options.device)
        rows += found
        extra = ", ".join(f"{row['who']} +{row['extra_ms']:.2f} ms" for row in found)
        print(letter, extra, f"over the sum: {share_of_sum(found):.2f}", flush=True)
        output.write(options.name or "readers", rows, options.out)


if __name__ == "__main__":
    main()
