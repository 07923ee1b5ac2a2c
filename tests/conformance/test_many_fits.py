"""150 fits in one process, with every callback of ours and a TensorBoard logger: nothing grows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import forked


@pytest.mark.slow
def test_nothing_grows(tmp_path: Path) -> None:
    """Hooks, threads, files and objects are what they were after the first 30; memory within 1 %."""
    done = forked.run(["-m", "tests.conformance._many_fits", "150", str(tmp_path)], timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    seen = [json.loads(line.removeprefix("AFTER ")) for line in done.stdout.splitlines() if line.startswith("AFTER ")]
    assert [now["fits"] for now in seen] == list(range(30, 151, 30))
    first = seen[0]
    for now in seen:
        assert now["hooks"] == now["hook managers"] == 0
        for what in ("threads", "tasks", "files", "observers"):
            assert now[what] <= first[what], (what, now)
        assert now["objects"] <= first["objects"] + 12, now  # one for every ten fits
        assert now["memory"] <= 1.01 * first["memory"], now
