"""Faults of data: labels, the scale of inputs and targets, and single batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from benchmarks.trainings.layers import layers_of
from benchmarks.trainings.mutators.mutator import Mutator, Planted
from benchmarks.trainings.spec import Spec
from galleries.health.training import Case


class Changed(DataLoader):
    """The batches of another loader, each changed.

    Args:
        loader: the other loader.
        change: takes the number of a batch, counted over all epochs, and the list of its tensors, and returns another list.
    """

    def __init__(self, loader: DataLoader, change: Callable[[int, list[Tensor]], list[Tensor]]) -> None:
        super().__init__(loader.dataset, batch_size=loader.batch_size, drop_last=True)
        self._loader, self._change, self._count = loader, change, 0

    def __iter__(self) -> Iterator[Any]:
        for batch in self._loader:
            yield self._change(self._count, [*batch])
            self._count += 1

    def __len__(self) -> int:
        return len(self._loader)


def _changed(case: Case, change: Callable[[int, list[Tensor]], list[Tensor]], rows: tuple[str, ...] = ()) -> Planted:
    return Planted(replace(case, loader=Changed(case.loader, change)), rows)


def _entry(case: Case) -> tuple[str, ...]:
    """The names of the first layer and of the modules that hold it, which get the inputs."""
    first = layers_of(case.module)[0][0].split(".")
    return tuple(".".join(first[:length]) for length in range(len(first) + 1))


def _shuffle(case: Case, spec: Spec, share: float) -> Planted:
    source = spec.source("wrong labels")

    def change(number: int, batch: list[Tensor]) -> list[Tensor]:
        inputs, targets, *others = batch
        is_wrong = torch.rand(len(targets), generator=source) < share
        order = torch.randperm(len(targets), generator=source)
        shape = (-1, *[1] * (targets.dim() - 1))
        return [inputs, torch.where(is_wrong.view(shape), targets[order], targets), *others]

    return _changed(case, change)


def _stretch_column(case: Case, spec: Spec, factor: float) -> Planted:
    def stretched(inputs: Tensor) -> Tensor:
        inputs = inputs.clone()
        inputs[..., 0] *= factor
        return inputs

    planted = _changed(case, lambda number, batch: [stretched(batch[0]), *batch[1:]], _entry(case))
    return planted._replace(entering=stretched)


def _scale_targets(case: Case, spec: Spec, factor: float) -> Planted:
    planted = _changed(case, lambda number, batch: [batch[0], factor * batch[1]])
    return planted._replace(leaving=lambda outputs: outputs / factor)


def _spoil_batch(case: Case, spec: Spec, value: float) -> Planted:
    bad = int(spec.accumulate * _SPOILED * spec.steps)

    def change(number: int, batch: list[Tensor]) -> list[Tensor]:
        if number != bad:
            return batch
        first = batch[0]
        if not math.isfinite(value):
            first = first.clone()
            first.view(-1)[0] = value
            return [first, *batch[1:]]
        return [first * value, *batch[1:]]

    return _changed(case, change)


_SPOILED = 0.5
_HAVE_COLUMNS = ("mlp", "regression")
_HAVE_NUMBERS = ("mlp", "regression", "cnn", "autoencoder")


def _has_targets(spec: Spec) -> bool:
    return spec.family in ("mlp", "cnn", "regression", "transformer", "recurrent", "ranking") and spec.batch > 1


MUTATORS = (
    Mutator(
        "labels-shuffled",
        "A share of the samples has the labels of others.",
        "pattern",
        (0.3, 0.5, 0.7, 0.9, 1.0),
        ("LossConstant",),
        (),
        ("loss", "mean"),
        plant=_shuffle,
        fits=_has_targets,
    ),
    Mutator(
        "column-too-large",
        "The numbers of one input column are multiplied by a factor.",
        "pattern",
        (30, 300, 3e3, 3e4, 1e6),
        ("InputNotNormalised",),
        ("DataNotNormalised",),
        ("input", "abs_max"),
        plant=_stretch_column,
        fits=lambda spec: spec.family in _HAVE_COLUMNS,
    ),
    Mutator(
        "targets-too-large",
        "All targets are multiplied by a factor.",
        "pattern",
        (30, 300, 3e3, 3e4, 1e6),
        ("TargetsOutOfReach",),
        ("DataNotNormalised",),
        ("loss", "mean"),
        plant=_scale_targets,
        fits=lambda spec: spec.family == "regression",
    ),
    Mutator(
        "bad-batch",
        "One batch in the middle of the training is multiplied by a factor, or has one number that is not finite.",
        "pattern",
        (1e2, 1e4, 1e8, math.inf, math.nan),
        ("NonFinite", "LossSpike", "GradientSpike", "LossDiverged"),
        ("BadBatch",),
        ("input", "abs_max"),
        plant=_spoil_batch,
        fits=lambda spec: spec.family in _HAVE_NUMBERS,
        onset=_SPOILED,
    ),
)
