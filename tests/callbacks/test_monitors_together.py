"""Two monitors in one Trainer: what both would write is refused, whatever their prefixes."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn

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
        ({"stages": ["validate"]}, {"prefix": "val_"}, "val_output_norm/layer"),
        ({"stages": ["train", "validate"]}, {"prefix": "val_", "stages": ["train"]}, "val_output_norm/layer"),
        ({"stages": ["train", "test"]}, {"prefix": "test_"}, "test_output_norm/layer"),
        ({"stages": ["validate"], "prefix": "a/"}, {"prefix": "a/val_"}, "a/val_output_norm/layer"),
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


class Deep(Line):
    """The gradients of `body.a` and `body.b` exist at every step."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return self.layer(self.body["b"](self.body["a"](batch))).mean()


def grads(params: str, **options: Any) -> Watch:
    return Watch(params=params, tensors="grad", stats=["norm", "mean"], **options)


def of(params: str, **options: Any) -> StatsMonitor:
    return StatsMonitor([grads(params)], **options)


def drawn(params: str, **options: Any) -> StatsMonitor:
    return StatsMonitor([Watch(params=params, tensors="grad", stats="histogram")], **options)


@pytest.mark.parametrize(
    ("first", "second", "tag"),
    [
        (of("body.a.*", max_scalars=1), of("body.b.*", max_scalars=1), None),  # `body.a` and `body.b`
        (of("body.*.weight", max_scalars=1), of("body.*.bias", max_scalars=1), "grad_norm/body"),
        (of("body.*.weight", max_scalars=3), of("body.*.bias", max_scalars=3), "grad_mean/body"),  # norms are not merged
        (of("body.*.weight", max_scalars=2), of("body.*.bias", max_scalars=2), None),  # and the means are not written
        (of("body.*.weight", max_scalars=1), of("body.*.bias", max_scalars=1, prefix="b/"), None),
        (of("body.*.weight", max_scalars=1), of("body.*.bias"), None),
        (drawn("body.*.weight", max_histograms=1), drawn("body.*.bias", max_histograms=1), "grad_histogram/body"),
        # The first one merges rows at every step, whichever of its schedules are due; the second has a group of that name.
        (
            StatsMonitor([grads("body.a.*"), grads("body.b.*", every_n_steps=2)], max_scalars=2),
            StatsMonitor([grads("layer.*", group_by={"body.a": "*"})]),
            "grad_norm/body.a",
        ),
    ],
)
def test_tags_of_merged_rows_that_both_would_write(
    tmp_path: Path, first: StatsMonitor, second: StatsMonitor, tag: str | None
) -> None:
    def run() -> None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*are more than max_")
            make(tmp_path, first, second, logger=Keeper()).fit(Deep(), loader([3.0, 4.0]))

    if tag is None:
        run()
    else:
        expected = rf"^prefix: two StatsMonitors would write '{tag}' .*, the name of rows that are merged"
        with pytest.raises(RuleError, match=expected):
            run()


def test_one_prefix_for_two_stages(tmp_path: Path) -> None:
    tags = fit(tmp_path, StatsMonitor(rule()), StatsMonitor(rule(), stages="validate"))
    assert {"output_norm/layer", "val_output_norm/layer", "run/nonfinite", "val_run/nonfinite"} <= tags.keys()


@pytest.mark.filterwarnings("ignore:.*matches nothing", "ignore:stages. no rule matches anything to watch in 'validate'")
def test_the_first_that_watches_a_stage_writes_its_global_numbers(tmp_path: Path) -> None:
    stages = ["train", "validate"]
    nothing = StatsMonitor([Watch(params="*", stats="norm"), Watch(modules="nope", strict=False)], stages=stages)
    assert "val_run/nonfinite" in fit(tmp_path, nothing, StatsMonitor(rule(), stages=stages))


def test_other_prefixes_and_other_rows_are_fine(tmp_path: Path) -> None:
    tags = fit(tmp_path, StatsMonitor(rule()), StatsMonitor(rule("mean")), StatsMonitor(rule(), prefix="b/"))
    assert {"output_norm/layer", "output_mean/layer", "b/output_norm/layer", "b/run/nonfinite"} <= tags.keys()


class Halves(Callback):
    """A callback of another package, which changes gradients before the step."""

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        for parameter in pl_module.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(0.5)


def test_a_monitor_on_each_side_of_a_callback_of_others_reads_what_is_there(tmp_path: Path) -> None:
    rules = [Watch(params="*", tensors="grad", stats="norm")]
    before, after = (StatsMonitor(rules, prefix=prefix, loggers=[]) for prefix in ("before/", "after/"))
    make(tmp_path, before, Halves(), after).fit(Line(), loader([3.0, 4.0]))
    (one, *_), (other, *_) = ([value for tag, value in each.latest.items() if "grad_norm/" in tag] for each in (before, after))
    assert other == pytest.approx(one / 2) and one > 0
