"""Each silent change is named at its row within 20 steps, live and from the event file; another seed is not named.

One seed, and one process for each run. `make gallery` runs three seeds, and the pair that needs two ranks.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from galleries.reference.judge import good_run, judge, run_in
from galleries.reference.pairs import PAIRS, Pair
from lightning_hooks.cli.comparing import compared
from lightning_hooks.health.reference.sources import NEEDED, read_reference
from lightning_hooks.tensorboard.best_views import best_views
from lightning_hooks.tensorboard.reading import read_run

IN_ONE_PROCESS = [pair for pair in PAIRS if pair.good != "ranks"]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], Path]:
    """The folders of good runs that were trained so far, by name and the step at which they were resumed."""
    return {}


@pytest.mark.parametrize("pair", IN_ONE_PROCESS, ids=lambda pair: pair.name)
def test_a_silent_change_is_named_at_its_row_and_another_seed_is_not(
    pair: Pair, good: dict[tuple[str, int], Path], tmp_path: Path
) -> None:
    key = pair.good, 0
    if key not in good:
        good[key] = good_run(pair.good, 0, tmp_path / "good")
    verdict = judge(pair, 0, good[key], tmp_path / "changed")
    assert verdict.is_right, [(finding.rule, finding.rows, step) for finding, step in verdict.told]
    if pair.resumed_at:
        return  # The finished run is in two folders, and the first step of the second one has no step before it.
    reference = read_reference(good[key], lambda path: best_views(read_run(path), NEEDED))
    again = compared(reference, run_in(tmp_path / "changed"))
    assert [(f.rule, f.rows, f.first_step) for f in again.findings] == [
        (f.rule, f.rows, f.first_step) for f in verdict.findings
    ]
