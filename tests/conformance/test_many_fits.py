"""300 fits in one process, with every callback of ours and a TensorBoard logger: nothing grows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.slow
def test_nothing_grows(tmp_path: Path) -> None:
    """Hooks, threads, files and objects are what they were after the first 50; memory within 2 %."""
    command = [sys.executable, "-m", "tests.conformance._many_fits", "300", str(tmp_path)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    seen = [json.loads(line.removeprefix("AFTER ")) for line in done.stdout.splitlines() if line.startswith("AFTER ")]
    assert [now["fits"] for now in seen] == list(range(50, 301, 50))
    first = seen[0]
    for now in seen:
        assert now["hooks"] == now["hook managers"] == 0
        for what in ("threads", "tasks", "files", "observers"):
            assert now[what] <= first[what], (what, now)
        assert now["objects"] <= first["objects"] + 25, now  # one for every ten fits
        assert now["memory"] <= 1.02 * first["memory"], now
