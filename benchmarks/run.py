"""The one command: every benchmark, then the report and the pictures.

python -m benchmarks.run              all of it, quick
FULL=1 python -m benchmarks.run       the same, longer
python -m benchmarks.run --only kernels writer
python -m benchmarks.run --only       no benchmark, only the report and the pictures
python -m benchmarks.run --machine h100    on a second machine: into results/h100 and RESULTS-h100.md, and no pictures

A quick row of `alternating` measures for about five seconds and starts a process, which takes as long again. The rows of
`common` are what people run: A and D in a quick run (ten rows), all workloads in a full one. Each benchmark prints its seconds.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks import readme
from benchmarks.output import RESULTS, full
from benchmarks.picture import draw
from benchmarks.report import render

ROOT = Path(__file__).parent.parent
# Each in a process of its own, so that no one's memory, threads or compiled code is another's.
RUNS: dict[str, tuple[str, ...]] = {
    "control": ("alternating", "--name", "control", "--variants", "control,idle_hooks"),
    "alternating": ("alternating", "--variants", "everything,scalars,final,histograms,every100"),
    "common": ("alternating", "--name", "common", "--variants", "default,transforms,bf16,accumulation,validation"),
    "compiled": ("alternating", "--name", "compiled", "--workloads", "C", "--variants", "compiled"),
    "reference": ("alternating", "--name", "reference"),
    "step_parts": ("step_parts",),
    "reports": ("step_parts", "--name", "reports", "--variant", "reports", "--workloads", "A,B,C,D"),
    "unwatched": ("step_parts", "--name", "unwatched", "--variant", "unwatched", "--workloads", "A,B,C,D"),
    "readers": ("readers",),
    "histograms": ("histograms",),
    "health": ("health",),
    "whole_fits": ("whole_fits",),
    "check": ("check",),
    "recorder": ("recorder",),
    "peers": ("peers",),
    "kernels": ("kernels",),
    "writer": ("writer",),
    "scaling": ("scaling",),
    "many_ranks": ("many_ranks",),
    "transforms": ("transforms",),
    "dashboard": ("dashboard",),
    "disk": ("disk",),
}


def run(name: str, folder: Path) -> bool:
    """Run one benchmark; say whether it went well.

    Args:
        name: a key of `RUNS`.
        folder: of the JSON files.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    if name == "reference":
        environment["LIGHTNING_HOOKS_KERNEL"] = "reference"
    module, *options = RUNS[name]
    if name == "common" and not full():  # five variants: B and C would take most of the time of a quick run
        options += ["--workloads", "A,D"]
    started = time.perf_counter()
    print(f"== {name}", flush=True)
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{module}", "--out", str(folder), *options], cwd=ROOT, env=environment
    )
    print(f"== {time.perf_counter() - started:.0f} s", flush=True)
    return done.returncode == 0


def output_paths(machine: str | None) -> tuple[Path, Path]:
    """The folder of the JSON files, and the report.

    Args:
        machine: what a second machine is called; None for the one whose figures the README shows.

    Example:
        >>> [path.name for path in output_paths("h100")]
        ['h100', 'RESULTS-h100.md']
    """
    above = RESULTS.parent
    return (RESULTS, above / "RESULTS.md") if machine is None else (RESULTS / machine, above / f"RESULTS-{machine}.md")


def main() -> int:
    """Run, render, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=list(RUNS), default=list(RUNS), help="which; none for the report alone")
    parser.add_argument("--machine", help="what a second machine is called; none for the one whose figures the README shows")
    options = parser.parse_args()
    folder, report = output_paths(options.machine)
    failed = [name for name in options.only if not run(name, folder)]
    report.write_text(render(folder))
    pictures = []
    if options.machine is None:
        pictures = [*draw(), readme.PAGE]
        readme.main()
    for path in (report, *pictures):
        print(f"written: {path.relative_to(ROOT)}")
    for name in failed:
        print(f"FAILED: {name}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
