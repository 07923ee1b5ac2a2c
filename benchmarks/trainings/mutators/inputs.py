"""Faults of inputs: their scale, their columns, and numbers that are missing."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.trainings.layers import layers_of
from benchmarks.trainings.mutators.batches import HAVE_NUMBERS, changed
from benchmarks.trainings.mutators.mutator import Mutator, Planted
from benchmarks.trainings.spec import Spec
from galleries.health.training import Case

_HAVE_COLUMNS = ("mlp", "regression")


def _entry(case: Case) -> tuple[str, ...]:
    """The names of the first layer and of the modules that hold it, which get the inputs."""
    first = layers_of(case.module)[0][0].split(".")
    return tuple(".".join(first[:length]) for length in range(len(first) + 1))


def _seen_as(case: Case, change: Callable[[Tensor], Tensor]) -> Planted:
    """Change all inputs, also those on which the model is measured."""
    planted = changed(case, lambda number, batch: [change(batch[0]), *batch[1:]], _entry(case))
    return planted._replace(entering=change)


def _stretch_column(case: Case, spec: Spec, factor: float) -> Planted:
    def stretched(inputs: Tensor) -> Tensor:
        inputs = inputs.clone()
        inputs[..., 0] *= factor
        return inputs

    return _seen_as(case, stretched)


def _move(case: Case, spec: Spec, distance: float) -> Planted:
    return _seen_as(case, lambda inputs: inputs + distance)


def _shrink(case: Case, spec: Spec, factor: float) -> Planted:
    return _seen_as(case, lambda inputs: inputs * factor)


def _blank(case: Case, spec: Spec, share: float) -> Planted:
    """Set a share of the columns to 0, the first ones."""

    def blanked(inputs: Tensor) -> Tensor:
        inputs = inputs.clone()
        inputs[..., : math.ceil(share * inputs.shape[-1])] = 0
        return inputs

    return _seen_as(case, blanked)


def _lose(case: Case, spec: Spec, share: float) -> Planted:
    """Set one number of a share of the samples to NaN."""
    source = spec.source("missing numbers")

    def change(number: int, batch: list[Tensor]) -> list[Tensor]:
        inputs = batch[0].clone()
        is_lost = torch.rand(len(inputs), generator=source) < share
        inputs.view(len(inputs), -1)[is_lost, 0] = math.nan
        return [inputs, *batch[1:]]

    return changed(case, change, _entry(case))


def _lacks_norm(spec: Spec) -> bool:
    return spec.family in _HAVE_COLUMNS and dict(spec.shape).get("norm", "none") == "none"


MUTATORS = (
    Mutator(
        "column-too-large",
        "The numbers of one input column are multiplied by a factor.",
        (30, 300, 3e3, 3e4, 1e6),
        plant=_stretch_column,
        fits=lambda spec: spec.family in _HAVE_COLUMNS,
    ),
    Mutator(
        "inputs-far-from-zero",
        "A number is added to all inputs, in front of a layer without a norm.",
        (5, 20, 100, 1e3, 1e4),
        plant=_move,
        fits=_lacks_norm,
    ),
    Mutator(
        "inputs-too-small",
        "All inputs are multiplied by a small factor, in front of a layer without a norm.",
        (0.1, 0.01, 1e-3, 1e-4, 1e-6),
        plant=_shrink,
        fits=_lacks_norm,
    ),
    Mutator(
        "columns-blank",
        "A share of the input columns is 0 in all samples.",
        (0.3, 0.5, 0.7, 0.9, 1.0),
        plant=_blank,
        fits=lambda spec: spec.family in _HAVE_COLUMNS,
    ),
    Mutator(
        "numbers-missing",
        "One number is NaN in a share of the samples.",
        (1e-4, 1e-3, 0.01, 0.1, 1.0),
        plant=_lose,
        fits=lambda spec: spec.family in HAVE_NUMBERS,
    ),
)
