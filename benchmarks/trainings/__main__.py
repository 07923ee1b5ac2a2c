"""The command: `python -m benchmarks.trainings --seeds FROM:TO`, then `judge FOLDER` and `table FOLDER`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks.trainings import results
from benchmarks.trainings.fitting import Job
from benchmarks.trainings.judging import judged
from benchmarks.trainings.planning import faulty_jobs, healthy_jobs, is_healthy, seeds_in
from benchmarks.trainings.pool import run_all
from benchmarks.trainings.recording import record
from benchmarks.trainings.table import page

_FOLDER = Path("benchmarks/trainings/runs")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser("python -m benchmarks.trainings", description=__doc__)
    parser.add_argument("command", nargs="?", choices=["record", "judge", "table"], default="record")
    parser.add_argument("folder", nargs="?", type=Path, help="of the results; as --out")
    parser.add_argument("--seeds", help="FROM:TO, which leaves out TO")
    parser.add_argument("--faults", nargs="?", type=int, const=10, default=0, help="trainings of each fault (default 10)")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, help=f"the folder of the results; default {_FOLDER}")
    options = parser.parse_args(arguments)
    folder = options.folder or options.out or _FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    if options.command == "judge":
        judge_all(folder, options.processes)
    elif options.command == "table":
        print(page(results.recorded(folder), results.judged(folder)), end="")
    elif options.seeds is None:
        parser.error("--seeds FROM:TO says which trainings to draw")
    else:
        try:
            seeds = seeds_in(options.seeds)
        except ValueError as error:
            parser.error(str(error))
        record_all(healthy_jobs(seeds), folder, options.processes)
        if options.faults:
            record_all(faulty_jobs(results.recorded(folder), seeds, options.faults), folder, options.processes)


def record_all(jobs: Sequence[Job], folder: Path, processes: int) -> None:
    """Record the jobs of which the folder has no line, and print how many there are of each outcome."""
    known = results.recorded(folder)
    missing = [job for job in jobs if job.key not in known]
    print(f"{len(jobs)} jobs, of which {len(jobs) - len(missing)} are recorded", file=sys.stderr)
    for count, (job, line) in enumerate(run_all(partial(record, folder=folder), missing, processes), 1):
        line = {"key": job.key, "seed": job.seed, "fault": job.fault, "rung": job.rung, "repeat": job.repeat, **line}
        results.append(folder, line)
        if count % 20 == 0 or count == len(missing):
            print(f"{count} of {len(missing)}: {_counted(jobs, folder)}", file=sys.stderr)


def _counted(jobs: Sequence[Job], folder: Path) -> str:
    lines = results.recorded(folder)
    mine = [lines[job.key] for job in jobs if job.key in lines]
    failed = sum(bool(line.get("error")) for line in mine)
    healthy = sum(map(is_healthy, mine))
    discards = sum(bool(line.get("discarded")) for line in mine)
    seconds = sum(line.get("seconds", 0.0) for line in mine) / max(len(mine), 1)
    return f"{len(mine)} recorded, {healthy} healthy, {discards} discarded, {failed} with an error, {seconds:.1f} s each"


def judge_all(folder: Path, processes: int) -> None:
    """Judge all recorded views with the rules of today."""
    lines = [line for line in results.recorded(folder).values() if "views" in line]
    done = run_all(partial(judged, folder=folder), lines, processes)
    verdicts = [{"key": line["key"], **verdict} for line, verdict in done]
    results.write_judged(folder, sorted(verdicts, key=lambda verdict: verdict["key"]))
    failed = sum("error" in verdict for verdict in verdicts)
    print(f"{len(verdicts)} judged, {failed} with an error", file=sys.stderr)


if __name__ == "__main__":
    main()
