"""What `check` takes: the seconds of each check and the memory beside that of a training.

    python -m benchmarks.check --workloads A,D

Each workload has a process of its own. It trains some steps, so that its memory has the size of a training's, and then checks
the first batch through a Trainer, as a user does before a fit. The seconds are those of the first check in a process. Those of
the processor say how many steps a check takes, because they hardly depend on what else the machine does.
"""

from __future__ import annotations

import resource
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

from lightning.pytorch import Trainer

from benchmarks import output
from benchmarks.workloads import SIZES
from lightning_hooks import check
from lightning_hooks.checks.result import CheckReport

_STEPS = 8


def measure(letter: str, sizes: str = "cpu") -> dict[str, Any]:
    """The row of a workload.

    Args:
        letter: of the workload.
        sizes: a key of `SIZES`.
    """
    workload = SIZES[sizes][letter]
    module, loader = workload.make(_STEPS)
    optimizer, batch = module.configure_optimizers(), next(iter(loader))
    step_ms = statistics.median(_train(module, optimizer, batch) for _ in range(_STEPS)) * 1e3
    before = _peak()
    module, loader = workload.make(_STEPS)
    trainer = Trainer(accelerator="cpu", max_steps=_STEPS, logger=False, enable_checkpointing=False, enable_progress_bar=False)
    started, used = time.perf_counter(), time.process_time()
    report = check(trainer, module, loader)
    seconds, cpu = time.perf_counter() - started, time.process_time() - used
    return {
        "workload": letter,
        "title": workload.title,
        "step_ms": step_ms,
        "parameters": sum(each.numel() for each in module.parameters()),
        "seconds": seconds,
        "cpu_seconds": cpu,
        "steps": cpu * 1e3 / step_ms,
        "slowest": _slowest(report),
        "extra_mb": (_peak() - before) / 1e6,
        "verdict": report.verdict,
        "by_check": {each.check: round(each.seconds, 4) for each in report.results},
    }


def _train(module: Any, optimizer: Any, batch: Any) -> float:
    """The processor's seconds of a step without Lightning."""
    started = time.process_time()
    optimizer.zero_grad()
    module.training_step(batch, 0).backward()
    optimizer.step()
    return time.process_time() - started


def _slowest(report: CheckReport) -> str:
    slowest = max(report.results, key=lambda each: each.seconds)
    return f"{slowest.check} {slowest.seconds:.2f} s"


def _peak() -> float:
    """The largest memory of the process so far, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and write."""
    parser = output.arguments(main.__doc__ or "")
    parser.add_argument("--workloads", default="A,B,C,D")
    parser.add_argument("--sizes", choices=list(SIZES), default="cpu")
    options = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    for letter in options.workloads.split(","):
        row = output.in_new_process(measure, letter, options.sizes)
        rows.append(row)
        print(
            f"{letter} {row['seconds']:.2f} s, {row['steps']:.0f} steps, {row['extra_mb']:.0f} MB: {row['verdict']}", flush=True
        )
        output.write(options.name or "check", rows, options.out)


if __name__ == "__main__":
    main()
