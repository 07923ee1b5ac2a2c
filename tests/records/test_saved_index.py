"""The row index of step views: what is read is what was written, in the layout that other readers know, and damage is named."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from lightning_hooks import RuleError
from lightning_hooks.plan.row_index import RequestedRows, RowIndex
from lightning_hooks.records.facts import ModuleFacts, Structure
from lightning_hooks.records.saved_index import SavedIndex
from lightning_hooks.rules.schedule import EveryN
from lightning_hooks.stats.accumulators import BUILT_IN, AccumulatorRows

OFTEN, ONCE = ((EveryN(2, 1, 9), ("mean", "histogram")),), ((EveryN(steps=(3, 5)), ("std",)), (EveryN(), ("norm",)))
INDEX = RowIndex(
    ["a", "b", "*"],
    ["grad", "grad", "grad"],
    ["Linear", "ReLU", ""],
    {2: (0, 1)},
    [1, 0],
    {0: 1},
    [RequestedRows("grad", OFTEN, np.array([0, 1]))],
    [RequestedRows("grad", ONCE, np.array([2]))],
    [AccumulatorRows(BUILT_IN[0], (0, 1))],
    magnitudes=True,
)
SAVED = SavedIndex(INDEX, "validate", "m/", 4, Structure((ModuleFacts("a", "Linear", "linear"),)), "watch/")
TEXT = (
    '{"format": 1, "stage": "validate", "prefix": "m/", "scalars": "watch/", "ranks": 4, '
    '"asked": {"m/val_grad": ["mean", "std", "norm"]}, "names": ["a", "b", "*"], "tensors": ["grad", "grad", "grad"], '
    '"module_types": ["Linear", "ReLU", ""], "members": {"2": [0, 1]}, "order": [1, 0], "param_row_of": {"0": 1}, '
    '"requests": [[[{"every": 2, "first": 1, "last": 9}, ["mean", "histogram"]]], '
    '[[[3, 5], ["std"]], [{"every": 1, "first": 0, "last": null}, ["norm"]]]], '
    f'"alike": [["grad", 0, [0, 1]]], "groups": [["grad", 1, [2]]], "kept": {{"{BUILT_IN[0].name}": [0, 1]}}, '
    '"magnitudes": true, "structure": {"modules": [["a", "Linear", "linear", null]], "parameters": []}}'
)


def test_what_is_read_is_what_was_written() -> None:
    assert SAVED.to_json() == TEXT
    read = SavedIndex.from_json(TEXT)
    assert (read.stage, read.prefix, read.ranks, read.structure, read.scalars) == (
        "validate",
        "m/",
        4,
        SAVED.structure,
        "watch/",
    )
    assert read.to_json() == TEXT


def test_a_file_of_an_older_version_lacks_the_newer_values() -> None:
    old = {key: value for key, value in json.loads(TEXT).items() if key not in ("structure", "scalars")}
    read = SavedIndex.from_json(json.dumps(old))
    assert (read.structure, read.scalars) == (None, None) and read.scalar_prefix == "m/val_"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, r"the step views were written in format 2; this version reads 1"),
        ({"names": ["a"]}, r"is damaged: ValueError: 1 names, 3 tensors and 3 types"),
        ({"order": ["x"]}, r"is damaged: RuleError: index.order\[0\] must be an integer below 2\*\*63, got 'x'"),
        ({"alike": [["grad", 7, [0]]]}, r"is damaged: IndexError"),
        ({"requests": [[[{"every": 0}, []]]]}, r"is damaged: RuleError: schedule.every must be an integer of at least 1"),
        ({"structure": {"modules": [[]]}}, r"is damaged: RuleError: index.structure.modules\[0\] has no 'name'"),
    ],
)
def test_damage_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(RuleError, match=message):
        SavedIndex.from_json(json.dumps(json.loads(TEXT) | change))


@pytest.mark.parametrize("text", ["", "[]", "3", "{}", "[" * 100_000])
def test_a_text_that_is_no_index_is_damaged(text: str) -> None:
    with pytest.raises(RuleError, match="the index of step views in the event file is damaged: "):
        SavedIndex.from_json(text)
