"""Runs the gallery: `python -m galleries.health.run [--seeds 0] [--only FAMILY/NAME] [--out FILE]`.

With `--only`, which takes `*`, the results of all other trainings stay in the file as they are.
"""

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
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--only", default="*")
    parser.add_argument("--out", type=Path, default=Path("galleries/health/results.jsonl"))
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    chosen = [
        each
        for each in [*healthy(), *faulty()]
        if fnmatch.fnmatchcase(f"{each.family}/{each.name}", args.only) or args.only == "*"
    ]
    if not chosen:
        parser.error(f"no training is called {args.only}; a name is FAMILY/NAME, as {healthy()[0].family}/{healthy()[0].name}")
    jobs = [(each.name, int(seed)) for each in chosen for seed in args.seeds.split(",")]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        results = list(pool.map(record, *zip(*jobs, strict=True), chunksize=4))
    args.out.write_text("".join(json.dumps(each) + "\n" for each in _joined(args.out, results)), encoding="utf-8")


def _joined(file: Path, results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """New results and those of the file that they do not replace, in the order of the gallery."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    by_run = {(each["name"], each["seed"]): each for each in [*map(json.loads, lines), *results]}
    order = {each.name: i for i, each in enumerate([*healthy(), *faulty()])}
    return [by_run[key] for key in sorted(by_run, key=lambda key: (order.get(key[0], -1), key[1])) if key[0] in order]


if __name__ == "__main__":
    main()
