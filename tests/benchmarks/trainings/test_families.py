"""What the measures of some families rest on, and who gets which parameters."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import nn

from benchmarks.trainings.draw import drawn, made
from benchmarks.trainings.families.ctc import errors
from benchmarks.trainings.families.gan import energy
from benchmarks.trainings.optimizers import is_manual, optimizers_of
from benchmarks.trainings.parts import Residual
from benchmarks.trainings.points import points
from benchmarks.trainings.spec import Spec

SPEC = Spec("mlp", 3, 200, "cross-entropy", "relu", "default", "adamw", 1e-3, weight_decay=0.1)


def test_a_symbol_too_many_too_few_or_wrong_is_an_error() -> None:
    assert [errors(each, [1, 2]) for each in ([1, 2], [1, 2, 2], [2], [1, 3], [])] == [0, 1, 1, 1, 2]


def test_the_density_of_points_is_that_of_their_clouds() -> None:
    _, banana = points(replace(SPEC, shape=(("points", "banana"),)), "fresh")
    _, ring = points(replace(SPEC, shape=(("points", "ring"),)), "fresh")
    cloud = -(1 + math.log(2 * math.pi))
    assert abs(float(banana.mean()) - (cloud - math.log(0.3))) < 0.1
    assert abs(float(ring.mean()) - (cloud - 2 * math.log(0.3) - math.log(5))) < 0.1


def test_the_energy_distance_of_like_points_is_zero() -> None:
    first, second = torch.randn(2, 500, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert float(energy(first, first)) == 0.0
    assert float(energy(first, second)) < 0.05 < float(energy(first.mean(0, keepdim=True), second))


def test_muon_gets_matrices_and_a_group_has_no_decay() -> None:
    layer = nn.Linear(3, 2)
    muon, others = optimizers_of(replace(SPEC, optimizer="muon"), layer.parameters())
    assert [muon.param_groups[0]["params"], others.param_groups[0]["params"]] == [[layer.weight], [layer.bias]]
    (grouped,) = optimizers_of(replace(SPEC, tricks=("groups",)), layer.parameters())
    assert [group["weight_decay"] for group in grouped.param_groups] == [0.1, 0.0]


def test_a_branch_is_skipped_in_training_alone() -> None:
    block = Residual(nn.Identity(), drop=1.0)
    assert float(block(torch.ones(()))) == 1.0
    assert float(block.eval()(torch.ones(()))) == 2.0


def test_the_steps_of_two_optimizers_are_counted_apart() -> None:
    spec = next(spec for seed in range(400) if (spec := drawn(seed)).family == "gan" and not spec["twice"])
    assert is_manual(spec) and made(spec).trainer["max_steps"] == 2 * spec.steps
