"""Two monitors in one Trainer: what both would write is refused, whatever their prefixes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from lightning_hooks import RuleError, StatsMonitor, Watch
from tests.callbacks._tiny import Keeper, Line, loader, make


class Validated(Line):
    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        self.layer(batch)


def rule(stats: Any = "norm", **options: Any) -> list[Watch]:
    return [Watch(modules="layer", tensors="output", stats=stats, **options)]


def fit(root: Path, *monitors: StatsMonitor) -> dict[str, float]:
    keeper = Keeper()
    trainer = make(root, *monitors, logger=keeper, num_sanity_val_steps=0)
    trainer.fit(Validated(), loader([3.0, 4.0]), loader([3.0, 4.0]))
    return {tag: value for line in keeper.lines.values() for tag, value in line.items()}


@pytest.mark.parametrize(
    ("first", "second", "tag"),
    [
        ({}, {}, "output_norm/layer"),
        ({"stages": ["validate"]}, {"prefix": "val_"}, "val_hooks/nonfinite"),
        ({"stages": ["train", "validate"]}, {"prefix": "val_", "stages": ["train"]}, "val_hooks/nonfinite"),
        ({"stages": ["train", "test"]}, {"prefix": "test_"}, "test_hooks/nonfinite"),
        ({"stages": ["validate"], "prefix": "a/"}, {"prefix": "a/val_"}, "a/val_hooks/nonfinite"),
        ({"watch": rule("histogram")}, {"watch": rule("histogram")}, "output_histogram/layer"),
        ({"watch": rule(group_by={"layer": "*"})}, {}, "output_norm/layer"),
    ],
)
def test_tags_that_both_would_write(tmp_path: Path, first: Any, second: Any, tag: str) -> None:
    monitors = [StatsMonitor(**{"watch": rule(), **options}) for options in (first, second)]
    with pytest.raises(RuleError, match=rf"^prefix: two StatsMonitors would write '{re.escape(tag)}' \(\d tags in common\)"):
        fit(tmp_path, *monitors)
    with pytest.raises(RuleError, match=r"two StatsMonitors would write"):
        fit(tmp_path, *reversed(monitors))


def test_one_prefix_for_two_stages(tmp_path: Path) -> None:
    tags = fit(tmp_path, StatsMonitor(rule()), StatsMonitor(rule(), stages="validate"))
    assert {"output_norm/layer", "val_output_norm/layer", "hooks/nonfinite", "val_hooks/nonfinite"} <= tags.keys()


def test_other_prefixes_and_other_rows_are_fine(tmp_path: Path) -> None:
    tags = fit(tmp_path, StatsMonitor(rule()), StatsMonitor(rule("mean")), StatsMonitor(rule(), prefix="b/"))
    assert {"output_norm/layer", "output_mean/layer", "b/output_norm/layer", "b/hooks/nonfinite"} <= tags.keys()
