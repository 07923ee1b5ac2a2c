"""Checks the gallery and writes docs/check.md: `python -m galleries.checks.run [--peer] [--only GLOB]`.

Results are kept in results.jsonl, those of the healthy trainings of the health gallery in held.jsonl. With `--peer`
torchtest2 runs on the same models, in the environment of its own that `make gallery PEERS=1` uses, and its results in
peer.jsonl are written again. With `--only NAME`, which takes `*`, the results of all other models stay as they are.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from galleries.checks import table
from galleries.checks.case import Fit, Pattern
from galleries.checks.catalogue import faulty, healthy
from galleries.checks.fits import changed_by_check
from galleries.checks.held import held_records
from galleries.checks.judge import judged
from galleries.rules import CHECKS
from tests.environments.peers import ROOT, environment

RESULTS = Path(__file__).parent / "results.jsonl"
HELD = Path(__file__).parent / "held.jsonl"


def record(pattern: Pattern) -> dict[str, Any]:
    """What `check` says of a pattern, and what it changes of a fit, as plain values."""
    verdict = judged(pattern)
    alarms = [asdict(each) for each in verdict.alarms]
    skipped = [each.check for each in verdict.skipped]
    line = {"name": pattern.name, "rules": CHECKS, "alarms": alarms, "skipped": skipped, "error": verdict.error}
    is_fit = pattern.expected is None and isinstance(pattern.build(), Fit)
    return line | {"changed": [*verdict.changed], "changed_in_fit": changed_by_check(pattern) if is_fit else None}


def main() -> None:
    """Run the gallery."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", action="store_true")
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    torch.set_num_threads(1)
    known = table.recorded()[0] if args.only else {}
    patterns = [*healthy(), *faulty()]
    if not any(fnmatch.fnmatchcase(each.name, args.only or "*") for each in patterns):
        parser.error(f"no model is called {args.only}")
    results = {each.name: record(each) for each in patterns if fnmatch.fnmatchcase(each.name, args.only or "*")}
    lines = [{**known, **results}[each.name] for each in patterns]
    RESULTS.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    if args.only:
        table.main()
        return
    HELD.write_text("".join(json.dumps(line) + "\n" for line in held_records()), encoding="utf-8")
    if args.peer:
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        command = [str(environment()), "-m", "galleries.checks.peer"]
        subprocess.run(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}, check=True)
    table.main()


if __name__ == "__main__":
    main()
