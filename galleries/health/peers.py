"""Runs other packages on the trainings of the gallery, in an environment that has them: `make gallery PEERS=1`.

    python -m galleries.health.peers [--only GLOB] [--rounds N] [--out FILE]

Each training runs bare and with each package in turn, in one process, and what each said is appended to peers.jsonl. Trainings
that are recorded there are skipped, so that an interrupted run goes on where it was.
"""

from __future__ import annotations

import argparse
import fnmatch
import gc
import io
import json
import logging
import statistics
import tempfile
import time
import warnings
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from galleries.health.catalogue import NAMED, faulty, healthy
from galleries.health.peer_callbacks import PEERS
from galleries.health.training import Training, fit

RESULTS = Path(__file__).parent / "peers.jsonl"
SEED = 0


@dataclass(frozen=True)
class Run:
    """A training that has run.

    Args:
        cpu: the processor's seconds of the process, those of the package's analysis included.
        wall: the seconds that passed.
        said: what the package said.
        error: the error that ended the training; empty if there was none.
    """

    cpu: float
    wall: float
    said: list[list[Any]]
    error: str


def run(training: Training, peer: Any) -> Run:
    """Run a training bare, or with a package."""
    callbacks = [] if peer is None else [peer, *getattr(peer, "others", [])]
    error, said = "", []
    gc.collect()
    silence = redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO())
    # A package may write a report into the working folder.
    with tempfile.TemporaryDirectory() as folder, chdir(folder), silence[0], silence[1]:
        began, began_cpu = time.perf_counter(), time.process_time()
        try:
            fit(training, SEED, callbacks, Path(folder))
        except Exception as failure:
            error = f"{type(failure).__name__}: {failure}"
        try:
            said = [] if peer is None else peer.finish(is_complete=not error)
        except Exception as failure:
            error = error or f"{type(failure).__name__}: {failure}"
        wall, cpu = time.perf_counter() - began, time.process_time() - began_cpu
    return Run(round(cpu, 3), round(wall, 3), said, error[:300])


def compared(training: Training, peers: list[type[Any]], rounds: int) -> list[dict[str, Any]]:
    """Run a training bare and with each package in turn, and return a line for each package."""
    runs: dict[Any, list[Run]] = {mode: [] for mode in (None, *peers)}
    failures: dict[Any, list[str]] = {}
    for number in range(rounds):
        for mode in list(runs) if number % 2 == 0 else list(reversed(runs)):
            peer = None if mode is None else mode()
            runs[mode].append(run(training, peer))
            if peer is not None:
                failures[mode] = peer.failures
    bare = [each.cpu for each in runs[None]]
    lines = []
    for mode in peers:
        first, cpu = runs[mode][0], [each.cpu for each in runs[mode]]
        line = {"name": training.name, "peer": mode.name, "version": version(mode.package), "seed": SEED}
        line |= {"said": first.said, "failures": failures[mode], "error": first.error}
        line |= {"ratio": round(statistics.median(cpu) / statistics.median(bare), 2), "cpu": cpu, "bare_cpu": bare}
        line |= {"wall": [each.wall for each in runs[mode]], "bare_wall": [each.wall for each in runs[None]]}
        lines.append(line | {package: version(package) for package in ("torch", "lightning")})
    return lines


def in_order() -> list[Training]:
    """All trainings of one process: the healthy ones, the third of the faults that `make test` runs, the other faults."""
    faults = [each for each in faulty() if each.family != "ranks"]
    return [*healthy(), *sorted(faults, key=lambda each: each.name not in NAMED)]


def main() -> None:
    """Run what is not recorded yet."""
    import torch

    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="*")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for each in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(each).setLevel(logging.ERROR)
    recorded = [json.loads(line) for line in args.out.read_text().splitlines()] if args.out.exists() else []
    done = {(each["name"], each["peer"], each["version"]) for each in recorded}
    is_warm = False
    for training in in_order():
        missing = [peer for peer in PEERS if (training.name, peer.name, version(peer.package)) not in done]
        if missing and fnmatch.fnmatchcase(training.name, args.only):
            if not is_warm:
                # The first fit with a package imports it. These runs are not kept.
                compared(training, missing, rounds=1)
                is_warm = True
            lines = compared(training, missing, args.rounds)
            with open(args.out, "a", encoding="utf-8") as file:
                file.writelines(json.dumps(line) + "\n" for line in lines)
            print(training.name, {line["peer"]: line["ratio"] for line in lines}, flush=True)


if __name__ == "__main__":
    main()
