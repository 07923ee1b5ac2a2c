"""Runs the gallery: `python -m galleries.reference.run [--seeds 0,1,2] [--only NAME] [--out FILE]`."""

from __future__ import annotations

import argparse
import json
import logging
import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from galleries.reference.judge import Verdict, good_run, judge
from galleries.reference.pairs import PAIRS, Pair
from galleries.rules import REFERENCE
from tests.conformance._tools import run_ranks

RESULTS = Path(__file__).parent / "results.jsonl"


def record(pair: Pair, seed: int) -> dict[str, Any]:
    """The verdict of one pair at one seed as plain values: in this process, or in two where it needs two ranks."""
    with tempfile.TemporaryDirectory() as folder:
        if pair.good != "ranks":
            return record_in(pair, seed, Path(folder))
        case = f"{pair.name}:{seed}"
        first, second = (ranks[case] for ranks in run_ranks("galleries.reference.run", [case], Path(folder)))
        if "told" not in first:
            raise RuntimeError(f"{case}: {first['error']}")
        return first if first["told"] == second["told"] else {**first, "right": False}


def record_in(pair: Pair, seed: int, folder: Path) -> dict[str, Any]:
    """The verdict of one pair at one seed, trained in this process, and perhaps in others at the same time.

    Args:
        pair: the pair.
        seed: of the good run.
        folder: for files, the same for all ranks.
    """
    torch.set_num_threads(1)
    for each in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(each).setLevel(logging.ERROR)
    verdict = judge(pair, seed, good_run(pair.good, seed, folder / "good"), folder / "changed")
    return _plain(verdict)


def _plain(verdict: Verdict) -> dict[str, Any]:
    told = [[finding.rule, list(finding.rows), step, finding.evidence[0].text] for finding, step in verdict.told]
    return {
        "name": verdict.pair.name,
        "seed": verdict.seed,
        "rules": REFERENCE,
        "right": verdict.is_right,
        "delay": verdict.delay,
        "told": told,
    }


def __getattr__(case: str) -> Callable[[Path], dict[str, Any]]:
    """A case of `run_ranks`: the name of a pair and a seed."""
    name, _, seed = case.partition(":")
    pair = next((pair for pair in PAIRS if pair.name == name), None)
    if pair is None or not seed.isdigit():
        raise AttributeError(case)
    return partial(record_in, pair, int(seed))


def main() -> None:
    """Run the pairs one after the other and write one JSON object a line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--only", default="")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with open(args.out, "w", encoding="utf-8") as file:
        for pair in PAIRS:
            for seed in map(int, args.seeds.split(",")) if args.only in ("", pair.name) else ():
                file.write(json.dumps(record(pair, seed)) + "\n")
                file.flush()


if __name__ == "__main__":
    main()
