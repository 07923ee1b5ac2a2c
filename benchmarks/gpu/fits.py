"""One fit of a workload in which several modes and nothing alternate, so that the modes are compared on one device and clock.

python -m benchmarks.gpu.fits --workload D

The modes are hooks that do nothing, and everything at every step, launched in four ways: as by default, where gradients are
measured late, several in one launch; with a launch in each hook; with outputs measured late, too; and from Python, by Triton.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

from benchmarks import output
from benchmarks.alternating import figures, layout_for
from benchmarks.blocks import OFF, Layout, compare
from benchmarks.clock import fit
from benchmarks.modes import AllLate, IdleHooks, LaunchesAtOnce, LaunchesFromPython, LaunchMode, Mode, everything, monitor_mode
from benchmarks.workloads import SIZES, Workload


def _launched(name: str, layout: Layout, kind: type[LaunchMode]) -> Mode:
    # Monitors of one fit write different tags.
    return monitor_mode(name, everything(), layout, kind=kind, prefix=f"{name}/")


MODES: dict[str, Callable[[str, Layout], Mode]] = {
    "idle_hooks": lambda name, layout: IdleHooks(name),
    "everything": lambda name, layout: monitor_mode(name, everything(), layout),
    "at_once": partial(_launched, kind=LaunchesAtOnce),
    "all_late": partial(_launched, kind=AllLate),
    "in_python": partial(_launched, kind=LaunchesFromPython),
}
_USUAL = ("idle_hooks", "everything", "at_once", "all_late")
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
    parser.add_argument("--modes", default=",".join(_USUAL))
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
