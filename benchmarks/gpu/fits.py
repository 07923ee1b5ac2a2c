"""One fit of a workload in which several modes and nothing alternate, so that the modes are compared on one device and clock.

python -m benchmarks.gpu.fits --workload D

The modes are hooks that do nothing, everything at every step, and the same where Triton launches the kernels from Python
instead of the compiled part.
"""

from __future__ import annotations

import gc
import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import torch
from lightning.pytorch import Trainer

from benchmarks import output
from benchmarks.alternating import figures, layout_for
from benchmarks.blocks import OFF, Layout, compare
from benchmarks.clock import fit
from benchmarks.modes import CallbackMode, IdleHooks, Mode, everything, monitor_mode
from benchmarks.workloads import SIZES, Workload

_DRIVER = "lightning_hooks.stats.kernels.driver"


class InPython(CallbackMode):
    """Everything, launched from Python. In the other steps the compiled part launches again.

    Monitors of one trainer share a table, so the table is switched between two blocks.
    """

    def start(self, trainer: Trainer) -> None:
        """Take the kernels away from the compiled part, which then passes each tensor to Python."""
        super().start(trainer)
        self._switch(in_python=True)

    def stop(self, trainer: Trainer) -> None:
        """Load the kernels of each table again at its next tensor, which gives them to the compiled part."""
        super().stop(trainer)
        self._switch(in_python=False)

    def finish(self, trainer: Trainer) -> None:
        """Let the compiled part launch again, if the fit ended within a block."""
        super().finish(trainer)
        self._switch(in_python=False)

    def _switch(self, in_python: bool) -> None:
        if not torch.cuda.is_available():
            return
        driver: Any = importlib.import_module(_DRIVER)
        driver.is_used = not in_python
        for rows in _queues():
            if in_python:
                for code in range(4):
                    rows.queue.set_kernel(code, 0, 0, 0)
            else:
                rows._launches.clear()


def _queues() -> Iterator[Any]:
    """The partial rows of all tables that the compiled part launches."""
    return (each for each in gc.get_objects() if type(each).__name__ == "QueuedRows")


def _in_python(name: str, layout: Layout) -> Mode:
    return InPython(name, *monitor_mode(name, everything(), layout, prefix="in_python/").callbacks)


MODES: dict[str, Callable[[str, Layout], Mode]] = {
    "idle_hooks": lambda name, layout: IdleHooks(name),
    "everything": lambda name, layout: monitor_mode(name, everything(), layout),
}
if importlib.util.find_spec(_DRIVER):
    MODES["in_python"] = _in_python
_LEAST_ROUNDS = 12


def measure(workload: Workload, names: tuple[str, ...], seconds: float, device: str) -> list[dict[str, Any]]:
    """A row for each mode, with the keys of a row of `benchmarks.alternating`.

    Args:
        workload: what is trained.
        names: the modes, keys of `MODES`.
        seconds: about how long the fit may take were all steps unwatched.
        device: `cpu` or `cuda`.
    """
    layout = layout_for(workload, (OFF, *names), seconds, _LEAST_ROUNDS if device == "cuda" else 2)
    modes = [MODES[name](name, layout) for name in names]
    clock = fit(*workload.make(layout.steps, device), layout, modes, options=workload.options, device=device)
    base = clock.blocks(OFF)
    return [
        {
            "workload": workload.name,
            "title": workload.title,
            "variant": name,
            "kernel": output.kernel_in_use(device),
            **figures(clock, name),
            **asdict(compare(clock.blocks(name), base)),
        }
        for name in names
    ]


def main(arguments: list[str] | None = None) -> None:
    """Measure and write."""
    parser = output.arguments(main.__doc__ or "")
    parser.add_argument("--workload", default="D")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--sizes", choices=list(SIZES), default="gpu")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    options = parser.parse_args(arguments)
    workload = SIZES[options.sizes][options.workload]
    rows = measure(workload, tuple(options.modes.split(",")), options.seconds, options.device)
    output.write(options.name or options.workload, rows, options.out)
    for row in rows:
        print(f"{row['workload']} {row['variant']}: {row['median']:.3f} [{row['low']:.3f}, {row['high']:.3f}]", flush=True)


if __name__ == "__main__":
    main()
