from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch.optim.optimizer import Optimizer
from torch.utils._pytree import tree_leaves

from galleries.checks.case import Pattern, Plain
from galleries.checks.catalogue import faulty, healthy
from galleries.checks.peer import FITS
from galleries.sample import sample
from lightning_hooks.checks.catalogue import checks_by_name

HEALTHY, FAULTY = healthy(), faulty()
PATTERNS = pytest.mark.parametrize("pattern", HEALTHY + FAULTY, ids=lambda pattern: pattern.name)


def test_names_are_unique() -> None:
    counts = Counter(pattern.name for pattern in HEALTHY + FAULTY)
    assert [name for name, count in counts.items() if count > 1] == []


def test_there_are_enough() -> None:
    assert len(HEALTHY) >= 20
    assert len(FAULTY) >= 25


def test_all_twelve_examples_of_torchtest2_have_a_version() -> None:
    assert {pattern.peer for pattern in FAULTY} - {0} == set(range(1, 13))


@PATTERNS
def test_a_pattern_is_well_formed(pattern: Pattern) -> None:
    expected = pattern.expected
    assert pattern.doc.endswith(".")
    assert (expected is None) == (pattern in HEALTHY)
    if expected is not None:
        assert expected.status in ("warn", "fail")
        assert set(expected.checks) <= set(FITS)
        assert expected.rows


@pytest.mark.parametrize("name", checks_by_name())
def test_a_model_shows_every_check(name: str) -> None:
    shown = {check for each in FAULTY if each.expected is not None for check in each.expected.checks}
    assert name in shown, f"add a model that expects {name} to galleries/checks/"


def tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


@pytest.mark.parametrize("pattern", sample(HEALTHY) + sample(FAULTY), ids=lambda pattern: pattern.name)
def test_a_pattern_is_built_the_same_again(pattern: Pattern) -> None:
    first, second = pattern.build(), pattern.build()
    parts = [
        (case.model, (case.inputs, case.targets)) if isinstance(case, Plain) else (case.module, next(iter(case.loader)))
        for case in (first, second)
    ]
    (model, batch), (again, repeated) = parts
    assert model is not again
    same = {"rtol": 0, "atol": 0, "equal_nan": True}
    torch.testing.assert_close(tensors([*model.state_dict().values()]), tensors([*again.state_dict().values()]), **same)
    torch.testing.assert_close(tensors(batch), tensors(repeated), **same)
    if isinstance(first, Plain):
        assert isinstance(first.optimizer, Optimizer)
