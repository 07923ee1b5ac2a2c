"""What each process of a run with several ranks does: `python -m tests.conformance._rank module folder case …`."""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
import warnings
from pathlib import Path

import torch


def main(module: str, out: str, *cases: str) -> None:
    torch.set_num_threads(1)
    rank = os.environ["LOCAL_RANK"]
    warnings.simplefilter("ignore")
    found = importlib.import_module(module)
    results = {}
    for case in cases:
        folder = Path(out) / case
        folder.mkdir(exist_ok=True)
        try:
            results[case] = getattr(found, case)(folder)
        except Exception:
            results[case] = {"error": traceback.format_exc()}
    (Path(out) / f"rank{rank}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
