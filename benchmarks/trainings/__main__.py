"""The command: `python -m benchmarks.trainings --seeds FROM:TO`, then `judge FOLDER` and `table FOLDER --into PAGE`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks.trainings import results
from benchmarks.trainings.fitting import Job
from benchmarks.trainings.judging import judged
from benchmarks.trainings.peers import peer_jobs, record_peers
from benchmarks.trainings.planning import faulty_jobs, healthy_jobs, is_healthy, seeds_in
from benchmarks.trainings.pool import run_all
from benchmarks.trainings.recording import record
from benchmarks.trainings.source import refuse_mixed
from benchmarks.trainings.table import PROTOCOL, page

_FOLDER = Path("benchmarks/trainings/runs")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser("python -m benchmarks.trainings", description=__doc__)
    parser.add_argument("command", nargs="?", choices=["record", "judge", "table"], default="record")
    parser.add_argument("folder", nargs="?", type=Path, help="of the results; as --out")
    parser.add_argument("--seeds", help="FROM:TO, which leaves out TO")
    parser.add_argument("--faults", nargs="?", type=int, const=10, default=0, help="trainings of each fault (default 10)")
    parser.add_argument("--peers", type=int, default=0, help="trainings on which other packages run too")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, help=f"the folder of the results; default {_FOLDER}")
    parser.add_argument("--into", type=Path, help="the page that `table` writes; default is the terminal")
    options = parser.parse_args(arguments)
    folder = options.folder or options.out or _FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    if options.command == "judge":
        judge_all(folder, options.processes)
    elif options.command == "table":
        publish(folder, options.into)
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
        if options.peers:
            record_peers(peer_jobs(results.recorded(folder), seeds, options.peers), folder, options.processes)


def record_all(jobs: Sequence[Job], folder: Path, processes: int) -> None:
    """Record the jobs of which the folder has no line, and print how many there are of each outcome."""
    known = results.recorded(folder)
    refuse_mixed(known.values(), str(folder / results.RECORDED), today=True)
    missing = [job for job in jobs if job.key not in known]
    print(f"{len(jobs)} jobs, of which {len(jobs) - len(missing)} are recorded", file=sys.stderr)
    for count, (job, line) in enumerate(run_all(partial(record, folder=folder), missing, processes), 1):
        line = {"key": job.key, "seed": job.seed, "fault": job.fault, "rung": job.rung, "repeat": job.repeat, **line}
        results.append(folder, line)
        if count % 20 == 0 or count == len(missing):
            print(f"{count} of {len(missing)}: {_counted(jobs, folder)}", file=sys.stderr)


def publish(folder: Path, into: Path | None = None) -> None:
    """Write the page of a folder, or print it.

    Raises:
        ValueError: lines were recorded with different sources, or judged with different rules.
    """
    lines, others = results.recorded(folder), results.recorded(folder, results.PEERS)
    refuse_mixed([*lines.values(), *others.values()], str(folder))
    text = page(lines, results.judged(folder), others, os.path.relpath(PROTOCOL, into.parent if into else Path.cwd()))
    if into is None:
        print(text, end="")
    else:
        into.write_text(text, encoding="utf-8")


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
