"""Runs other packages on recorded trainings, in the environment of its own that `make gallery PEERS=1` uses.

    python -m benchmarks.trainings.peers FOLDER PROCESSES KEY...

is what `python -m benchmarks.trainings --seeds FROM:TO --peers N` starts there.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import chdir
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from benchmarks.trainings import results
from benchmarks.trainings.fitting import Job, fitted, spec_of
from benchmarks.trainings.mutators import MUTATORS, RUNGS
from benchmarks.trainings.planning import is_healthy
from benchmarks.trainings.pool import run_all
from benchmarks.trainings.source import source_of
from benchmarks.trainings.verdicts import harm_of
from galleries.health.peer_callbacks import TorchAudit, Torchmortem
from lightning_hooks.codec import encode
from tests.environments.peers import ROOT, environment

PEERS: Final[Mapping[str, type[Any]]] = {each.name: each for each in (Torchmortem, TorchAudit)}


def peer_jobs(lines: Mapping[str, Mapping[str, Any]], seeds: Sequence[int], count: int) -> list[Job]:
    """The trainings on which other packages run: the first healthy ones, and as many harmful rungs of visible faults.

    Of each fault its worst harmful rung in a training is taken, of all faults in the first training, then in the second one.

    Args:
        lines: of the recorded jobs.
        seeds: the drawn trainings among which to choose.
        count: the number of trainings.
    """
    healthy = [Job(seed) for seed in seeds if str(seed) in lines and is_healthy(lines[str(seed)])]
    harmful = []
    for name in (name for name, mutator in MUTATORS.items() if mutator.is_visible):
        trainings = [[Job(job.seed, name, rung) for rung in reversed(range(RUNGS))] for job in healthy]
        worst = [[job for job in rungs if job.key in lines and harm_of(lines[job.key], lines)][:1] for rungs in trainings]
        harmful += [(position, each[0]) for position, each in enumerate(filter(None, worst))]
    faulty = [job for _, job in sorted(harmful, key=lambda each: each[0])]
    return healthy[: count - count // 2] + faulty[: count // 2]


def record_peers(jobs: Sequence[Job], folder: Path, processes: int) -> None:
    """Run the other packages on jobs, in their environment, and append a line for each to the folder."""
    command = [str(environment()), "-m", "benchmarks.trainings.peers", str(folder.resolve()), str(processes)]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    options = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    subprocess.run([*command, *(job.key for job in jobs)], cwd=ROOT, env=options, check=True)


def said(task: tuple[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What a package says of a job.

    Args:
        task: the name of the package, and the line of the recorded job.
    """
    name, line = task
    peer, job = PEERS[name](), Job(line["seed"], line["fault"], line["rung"])
    told: list[Any] = []
    # A package may write a report into the working folder.
    with tempfile.TemporaryDirectory() as scratch, chdir(scratch):
        result = fitted(spec_of(job), Path(scratch), [peer], job)
        error = result.error
        try:
            told = peer.finish(is_complete=not error)
        except Exception as failure:
            error = error or f"{type(failure).__name__}: {failure}"
    about = {"key": f"{job.key} {name}", "job": job.key, "fault": job.fault, "peer": name, "version": version(peer.package)}
    failed = {"failures": peer.failures, "error": error[:300], "source": source_of(line["family"], job.fault)}
    return encode({**about, "said": told, **failed})


def main() -> None:
    """Run the packages on the jobs of the command line of which the folder has no line."""
    folder, processes, keys = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    lines, done = results.recorded(folder), results.recorded(folder, results.PEERS)
    tasks = [(name, lines[key]) for key in keys for name in PEERS if f"{key} {name}" not in done]
    print(f"{len(tasks)} fits with other packages", file=sys.stderr)
    for (name, line), found in run_all(said, tasks, processes):
        failed = {"key": f"{line['key']} {name}", "job": line["key"], "fault": line["fault"], "peer": name, "said": []}
        results.append(folder, {**failed, **found}, results.PEERS)


if __name__ == "__main__":
    main()
