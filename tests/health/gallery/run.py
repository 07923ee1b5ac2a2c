"""Runs the gallery: `python -m tests.health.gallery.run [--seeds 0,1,2] [--only GLOB] [--out FILE]`."""

from __future__ import annotations

import argparse
import fnmatch
import json
import logging
import multiprocessing
import os
import tempfile
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from tests.health.gallery.catalogue import faulty, healthy
from tests.health.gallery.judge import judge


def record(name: str, seed: int) -> dict[str, Any]:
    """The verdict of one training at one seed as plain values."""
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for each in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(each).setLevel(logging.ERROR)
    training = next(each for each in [*healthy(), *faulty()] if each.name == name)
    with tempfile.TemporaryDirectory() as folder:
        verdict = judge(training, seed, Path(folder))
    return {
        "name": name,
        "seed": seed,
        "findings": [[finding.rule, list(finding.rows), str(finding.severity), step] for finding, step in verdict.findings],
        "texts": [finding.evidence[0].text if finding.evidence else "" for finding, _ in verdict.findings],
        "causes": list(verdict.causes),
        "error": verdict.error,
        "delay": verdict.delay,
        "found": verdict.is_found,
        "in_time": verdict.is_in_time,
        "cause": verdict.has_cause,
    }


def main() -> None:
    """Run the chosen trainings in two processes and write one JSON object a line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--only", default="*")
    parser.add_argument("--out", type=Path, default=Path("tests/health/gallery/results.jsonl"))
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    chosen = [
        each
        for each in [*healthy(), *faulty()]
        if fnmatch.fnmatchcase(f"{each.family}/{each.name}", args.only) or args.only == "*"
    ]
    jobs = [(each.name, int(seed)) for each in chosen if each.family != "ranks" for seed in args.seeds.split(",")]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context) as pool, open(args.out, "w", encoding="utf-8") as file:
        for result in pool.map(record, *zip(*jobs, strict=True), chunksize=4):
            file.write(json.dumps(result) + "\n")
            file.flush()


if __name__ == "__main__":
    main()
