from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from galleries.health.catalogue import faulty, healthy
from galleries.health.table import RESULTS
from galleries.health.training import Training
from galleries.sample import sample
from lightning_hooks.health.rule import HealthRule, Severity
from lightning_hooks.health.rules import DEFAULT_RULES

HEALTHY, FAULTY = healthy(), faulty()
RECORDED = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]


def test_names_are_unique() -> None:
    counts = Counter(training.name for training in HEALTHY + FAULTY)
    assert [name for name, count in counts.items() if count > 1] == []


@pytest.mark.parametrize("trainings", [HEALTHY, FAULTY], ids=["healthy", "faulty"])
def test_every_family_has_both_halves(trainings: Sequence[Training]) -> None:
    halves = defaultdict(set)
    for training in trainings:
        halves[training.family].add(training.half)
    assert {family: found for family, found in halves.items() if found != {"set", "held"}} == {}


def test_there_are_enough() -> None:
    assert len(HEALTHY) >= 30
    assert len(FAULTY) >= 40


def test_the_small_models_of_transformers_are_included_where_it_is_installed() -> None:
    assert any(training.family == "library" for training in HEALTHY) == (find_spec("transformers") is not None)


@pytest.mark.parametrize("training", HEALTHY, ids=lambda training: training.name)
def test_a_healthy_training_expects_nothing(training: Training) -> None:
    assert training.expects is None
    assert 150 <= training.steps <= 400
    assert training.doc.endswith(".")


@pytest.mark.parametrize("training", FAULTY, ids=lambda training: training.name)
def test_an_expectation_is_well_formed(training: Training) -> None:
    expects = training.expects
    assert expects is not None
    assert expects.kind in ("fact", "pattern", "invisible")
    assert bool(expects.seen_by) == (expects.kind == "invisible")
    assert bool(expects.rules) == (expects.kind != "invisible")
    assert 0 <= expects.onset < training.steps
    assert expects.rows


@pytest.mark.parametrize("rule", DEFAULT_RULES, ids=lambda rule: rule.name)
def test_a_training_shows_every_rule(rule: HealthRule) -> None:
    """A fault of its own, or, for a rule that only informs, a recorded run in which it found something."""
    shown = {name for each in FAULTY if each.expects is not None for name in each.expects.rules}
    if rule.severity is Severity.INFO:
        shown |= {name for run in RECORDED for name, *_ in run["findings"]}
    assert rule.name in shown, f"add a training that expects {rule.name} to galleries/health/"


def tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


@pytest.mark.parametrize("training", sample(HEALTHY) + sample(FAULTY), ids=lambda training: training.name)
def test_a_seed_makes_the_same_module_and_first_batch_again(training: Training) -> None:
    first, second = training.make(3), training.make(3)
    assert first.module is not second.module
    state, again = first.module.state_dict(), second.module.state_dict()
    assert list(state) == list(again)
    torch.testing.assert_close(tensors(list(state.values())), tensors(list(again.values())), rtol=0, atol=0, equal_nan=True)
    batch, repeated = tensors(next(iter(first.loader))), tensors(next(iter(second.loader)))
    torch.testing.assert_close(batch, repeated, rtol=0, atol=0, equal_nan=True)
