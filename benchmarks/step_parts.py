"""Where the time of a step goes: the methods of our callbacks, and the rest, in which hooks run and read.

Watched and unwatched steps alternate in one fit, so that neighbours are compared. What a method takes is some microseconds of
a step of milliseconds, and is seen here where the step's own time varies by more.

python -m benchmarks.step_parts
python -m benchmarks.step_parts --variant reports
python -m benchmarks.step_parts --variant unwatched
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from benchmarks import output
from benchmarks.blocks import OFF, Layout
from benchmarks.clock import fit
from benchmarks.modes import everything
from benchmarks.workloads import SIZES, Workload
from lightning_hooks import Apply, GradientTransforms, StatsMonitor, Watch
from lightning_hooks.transforms import ClipByGlobalNorm

_METHODS = ("on_train_batch_start", "on_before_optimizer_step", "on_train_batch_end")
REST = "the rest of the step: training, and hooks within forward and backward"
WHOLE = "the whole step"
TAKING = "of it: taking the reports"
"""A part of the monitor's `on_train_batch_end`."""


@dataclass(frozen=True)
class Variant:
    """What a fit is made of.

    Args:
        every: the interval of watched steps.
        transforms: whether a `GradientTransforms` with `ClipByGlobalNorm` on all parameters acts in every step; it reports
            where the monitor watches.
        compares: whether gradients are compared with those of the previous watched step.
    """

    every: int = 2
    transforms: bool = False
    compares: bool = False


VARIANTS = {
    "everything": Variant(),
    "compared": Variant(compares=True),
    "reports": Variant(transforms=True),
    "unwatched": Variant(every=100),
}


class MethodClock(Callback):
    """Times the methods of our callbacks, and of the guard that they put first in the trainer.

    Args:
        ours: callbacks of the trainer, after this one.
    """

    def __init__(self, ours: Sequence[Callback]) -> None:
        self.ours = ours
        self.seconds: list[dict[str, float]] = []
        """Of each step by part."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            kind = type(callback).__name__
            if callback in self.ours or kind == "HooksGuard":
                for name in _METHODS:
                    if callable(getattr(callback, name)):
                        setattr(callback, name, self._timed(getattr(callback, name), f"{kind}.{name}"))
            participant = getattr(callback, "participant", None)
            if participant is not None:
                participant.take_reports = self._timed(participant.take_reports, TAKING)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self.seconds.append({})

    def _timed(self, method: Callable[..., Any], part: str) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            result = method(*args, **kwargs)
            of_step = self.seconds[-1]
            of_step[part] = of_step.get(part, 0.0) + time.perf_counter() - started
            return result

        return timed


def measure(workload: Workload, variant: Variant, steps: int, device: str = "cpu") -> list[dict[str, Any]]:
    """The parts of a step, from one fit.

    Args:
        workload: what is trained.
        variant: what the fit is made of.
        steps: that count; as many again by a quarter come before them.
        device: `cpu` or `cuda`. The time of a device is seen only where the host waits for it.
    """
    lead = max(steps // 4, 3)
    layout = Layout((OFF,), rounds=1, length=steps, lead=lead)
    watched = {*range(variant.every - 1, layout.steps, variant.every)}
    rules = [*everything(), Watch(params="*", tensors="grad", stats="cosine")] if variant.compares else everything()
    ours: list[Callback] = [StatsMonitor(watch=rules, every_n_steps=variant.every)]
    if variant.transforms:
        ours.insert(0, GradientTransforms([Apply(ClipByGlobalNorm(1.0), params="*")]))
    methods = MethodClock(ours)
    made = workload.make(layout.steps, device)
    clock = fit(*made, layout, [], always=[methods, *ours], options=workload.options, device=device)
    found: dict[str, tuple[list[float], list[float]]] = {}
    for step in range(lead + layout.warmup, layout.steps - 1):
        whole, parts = clock.ended[step] - clock.begun[step], methods.seconds[step]
        rest = whole - sum(value for part, value in parts.items() if part != TAKING)
        for part, value in {**parts, REST: rest, WHOLE: whole}.items():
            found.setdefault(part, ([], []))[step in watched].append(value)
    rows: list[dict[str, Any]] = [
        {
            "workload": workload.name,
            "title": workload.title,
            "part": part,
            "watched_us": statistics.median(with_us or [0.0]) * 1e6,
            "unwatched_us": statistics.median(without or [0.0]) * 1e6,
        }
        for part, (without, with_us) in found.items()
    ]
    reported = [value for step, value in clock.overhead.items() if step >= lead + layout.warmup]
    if variant.every == 2 and reported:
        whole_step = next(row for row in rows if row["part"] == WHOLE)
        whole_step["share"] = statistics.median((on - off) / on for off, on in zip(*found[WHOLE], strict=False))
        # `run/overhead` is that of the steps since the last watched one, of two here: of the watched one it is more.
        both = (whole_step["watched_us"] + whole_step["unwatched_us"]) / whole_step["watched_us"]
        whole_step["overhead"] = statistics.median(reported) * both
    return rows


def rows_of(letter: str, variant: str, seconds: float, sizes: str, device: str) -> list[dict[str, Any]]:
    """The rows of a workload, of a fit of about so many seconds."""
    workload = SIZES[sizes][letter]
    return measure(workload, VARIANTS[variant], max(round(seconds * 1e3 / workload.step_ms), 20), device)


def main(arguments: list[str] | None = None) -> None:
    """Measure and write."""
    parser = output.arguments(main.__doc__ or "")
    parser.add_argument("--variant", choices=list(VARIANTS), default="everything")
    parser.add_argument("--workloads", default="A,D")
    parser.add_argument("--seconds", type=float, default=40.0 if output.full() else 8.0)
    parser.add_argument("--sizes", choices=list(SIZES), default="cpu")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    options = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    for letter in options.workloads.split(","):
        made = letter, options.variant, options.seconds, options.sizes, options.device
        rows += output.in_new_process(rows_of, *made)
    for row in rows:
        print(f"{row['workload']} {row['part']}: {row['watched_us']:.0f} µs, {row['unwatched_us']:.0f} unwatched", flush=True)
    output.write(options.name or "step_parts", rows, options.out)


if __name__ == "__main__":
    main()
