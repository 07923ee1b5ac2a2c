"""The command `python -m galleries.reports.attempt NUMBER...`: how far scripts get with their fault and without it."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from galleries.reports.catalogue import common, reports
from galleries.reports.report import Run


def main() -> None:
    """Train each script twice with its fault and twice without it, watched by nobody."""
    for report in [*reports(), *common()]:
        if str(report.number) not in sys.argv[1:]:
            continue
        start = time.process_time()
        measures = []
        for is_fixed in (False, True):
            for seed in (0, 1):
                with tempfile.TemporaryDirectory() as folder:
                    measures.append(report.train(Run(is_fixed, seed, Path(folder))))
        faulty, fixed = (" ".join(f"{each:.3f}" for each in measures[part : part + 2]) for part in (0, 2))
        print(f"{report.number} {report.name}: faulty {faulty}, fixed {fixed}; {time.process_time() - start:.1f} s")


if __name__ == "__main__":
    main()
