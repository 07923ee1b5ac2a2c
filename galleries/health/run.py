"""Runs the gallery: `python -m galleries.health.run [--seeds 0,1,2] [--only GLOB] [--out FILE]`."""

from __future__ import annotations

import argparse
import fnmatch
import json
import multiprocessing
import os
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from galleries.health.catalogue import faulty, healthy
from galleries.health.rank import found, record_here
from tests.conformance._tools import run_ranks


def record(name: str, seed: int) -> dict[str, Any]:
    """The verdict of one training at one seed as plain values: in this process, or in one for each of its ranks."""
    with tempfile.TemporaryDirectory() as folder:
        if found(name).family != "ranks":
            return record_here(name, seed, Path(folder))
        case = f"{name}:{seed}"
        first, *others = (ranks[case] for ranks in run_ranks("galleries.health.rank", [case], Path(folder)))
        if "findings" not in first:
            raise RuntimeError(f"{case}: {first['error']}")
        agree = all(other.get("findings") == first["findings"] for other in others)
        return first if agree else {**first, "error": "the ranks do not agree"}


def main() -> None:
    """Run the chosen trainings in two processes and write one JSON object a line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--only", default="*")
    parser.add_argument("--out", type=Path, default=Path("galleries/health/results.jsonl"))
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    chosen = [
        each
        for each in [*healthy(), *faulty()]
        if fnmatch.fnmatchcase(f"{each.family}/{each.name}", args.only) or args.only == "*"
    ]
    jobs = [(each.name, int(seed)) for each in chosen for seed in args.seeds.split(",")]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context) as pool, open(args.out, "w", encoding="utf-8") as file:
        for result in pool.map(record, *zip(*jobs, strict=True), chunksize=4):
            file.write(json.dumps(result) + "\n")
            file.flush()


if __name__ == "__main__":
    main()
