"""The rows of a plan, and the values that a step writes for them."""

import numpy as np
import pytest
import torch
from torch import nn

from lightning_hooks import Watch
from lightning_hooks.plan.groups import block_of
from lightning_hooks.plan.resolve import resolve
from lightning_hooks.plan.rows import requested
from lightning_hooks.records.entry import LogEntry
from lightning_hooks.records.layout import EntryLayout
from lightning_hooks.records.levels import Levels
from lightning_hooks.records.step_view import StepView
from lightning_hooks.rules.schedule import EveryN
from lightning_hooks.stats.kernels.reference import measure
from lightning_hooks.stats.moments import merge_groups, neutral
from lightning_hooks.stats.statistics import compute


def net():
    return nn.Sequential(*(nn.Sequential(nn.Linear(3, 3), nn.ReLU()) for _ in range(4)))


def test_rows_with_the_same_requests_share_an_entry_of_the_row_index():
    plan = resolve(net(), [Watch(params="*", tensors="grad", stats="norm"), Watch(params="*bias", tensors="grad")], EveryN())
    assert [each.rows.tolist() for each in plan.index.requested_rows] == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert resolve(net(), [], EveryN()).index.requested_rows == ()


RULES = [
    Watch(params="*", tensors=["grad", "param"], stats=["mean", "norm"]),
    Watch(params=["1.*", "3.0.bias"], tensors="grad", stats=["max"], every_n_steps=2),
    Watch(params="*weight", tensors="update", stats=["norm", "ratio"], group_by=1),
    Watch(modules="*", select="leaves", tensors="output", stats=["std"], every_n_steps=3),
]


UNMERGED = Levels()


def filled(due, absent=(), levels=UNMERGED):
    """A plan, moments of its rows and groups, and the entry that a layout makes of them."""
    plan = resolve(net(), RULES, EveryN())
    layout = EntryLayout(plan.index, due, levels=levels)
    torch.manual_seed(0)
    rows = torch.stack([neutral(1)[0] if i in absent else measure(torch.randn(5 + i) + i) for i in range(len(plan.rows))])
    groups = [merge_groups(rows[list(group.members)]) for group in plan.groups]
    moments = torch.stack([*rows, *groups]).numpy()
    return plan, moments, layout.fill(StepView(0, rows=plan.index, moments=moments, due=due))


SCHEDULES = [frozenset(EveryN(every=every) for every in due) for due in ([1], [1, 2], [2], [1, 2, 3])]


@pytest.mark.parametrize("due", SCHEDULES, ids=lambda due: ",".join(str(each) for each in sorted(each.every for each in due)))
@pytest.mark.parametrize("absent", [(), (1, 4, 9)], ids=["complete", "incomplete"])
def test_columns_have_the_requested_statistics_of_rows_and_groups(due, absent):
    plan, moments, step = filled(due, absent)
    every = [*plan.rows, *plan.groups]
    expected: dict[tuple[str, str], list[int]] = {}
    for row in every:
        for stat in requested(row.requests, due):
            expected.setdefault((row.tensor, stat), []).append(row.index)
    counted = list(dict.fromkeys((row.tensor, "count") for row in every if requested(row.requests, due)))
    assert [(series.tensor, series.stat) for series in step.series] == [*expected, *counted]
    for series, rows in zip(step.series, expected.values(), strict=False):
        assert series.names == tuple(every[i].name for i in rows)
        if series.stat != "ratio":
            has_elements = moments[rows, 0] > 0
            assert series.measured.tolist() == has_elements.tolist()
            values = compute(series.stat, moments)[rows]
            np.testing.assert_allclose(series.values[has_elements], values[has_elements], rtol=1e-12)


LEVELS = {("grad", "mean"): 1, ("grad", "norm"): 3, ("param", "norm"): 2, ("output", "std"): 0}
"""`grad_max` and `param_mean` have no level, so they are not written."""


@pytest.mark.parametrize("absent", [(), (1, 4, 9)], ids=["complete", "incomplete"])
@pytest.mark.parametrize("pinned", [(), ("2.0.weight",)], ids=["", "pinned"])
def test_merged_rows_have_the_statistics_of_their_block(absent, pinned):
    due = SCHEDULES[-1]
    plan, moments, step = filled(due, absent, Levels(LEVELS, pinned=frozenset(pinned)))
    merged = dict(zip(step.merged[0], step.merged[1].tolist(), strict=True))
    expected: dict[str, float] = {}
    for (tensor, stat), level in LEVELS.items():
        blocks: dict[str, list[int]] = {}
        for row in plan.rows:
            if row.tensor == tensor and stat in requested(row.requests, due):
                blocks.setdefault(block_of(row.name, level), []).append(row.index)
        for block, rows in blocks.items():
            union = merge_groups(torch.from_numpy(moments[rows])).numpy()[None]
            if union[0, 0] > 0:
                expected[f"{tensor}_{stat}/{block}"] = compute(stat, union)[0]
    for each in [*plan.groups, *(row for row in plan.rows if row.name in pinned and row.index not in absent)]:
        for stat in requested(each.requests, due):
            if stat != "ratio":
                expected[f"{each.tensor}_{stat}/{each.name}"] = compute(stat, moments[[each.index]])[0]
    assert {tag for tag in merged if "_ratio/" not in tag} == set(expected)
    for tag, value in expected.items():
        assert merged[tag] == pytest.approx(value, rel=1e-12), tag


def test_ratios_and_histograms_of_blocks():
    rules = [Watch(params="*", tensors="update", stats=["ratio"]), Watch(params="*", tensors="grad", stats=["histogram"])]
    plan = resolve(net(), rules, EveryN())
    levels = Levels({("update", "ratio"): 1}, {("grad", "histogram"): 1}, frozenset({"0.0.weight"}))
    rows = [measure(torch.randn(5 + i)) for i in range(len(plan.rows))]
    moments = torch.stack(rows).numpy()
    counts = np.arange(8.0)[:, None] * np.ones((1, LogEntry(0).histogram_counts.shape[1]))
    due = frozenset([EveryN()])
    step = EntryLayout(plan.index, due, levels=levels).fill(
        StepView(0, rows=plan.index, moments=moments, due=due, kept={"histogram": counts})
    )
    for block in range(4):
        members = [row.index for row in plan.rows if row.tensor == "update" and row.name.startswith(f"{block}.")]
        above, below = (
            merge_groups(torch.from_numpy(moments[rows])).numpy()[None]
            for rows in (members, [plan.param_row_of[i] for i in members])
        )
        assert step.scalars[f"update_ratio/{block}"] == pytest.approx(compute("norm", above)[0] / compute("norm", below)[0])
    drawn = dict(zip(step.histogram_tags, step.histogram_counts[:, 0].tolist(), strict=True))
    assert drawn == {f"grad_histogram/{i}": 4.0 * i + 1 for i in range(4)} | {"grad_histogram/0.0.weight": 0.0}
