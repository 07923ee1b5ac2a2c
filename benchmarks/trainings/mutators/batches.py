"""Faults of batches: a bad one, the same ones again, sorted samples, few samples."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset

from benchmarks.trainings.mutators.mutator import Mutator, Planted
from benchmarks.trainings.optimizers import OPTIMIZERS
from benchmarks.trainings.spec import Spec
from galleries.health.training import Case

Change = Callable[[int, list[Tensor]], list[Tensor]]
"""Takes the number of a batch, counted over all epochs, and the list of its tensors, and returns another list."""

_SPOILED = 0.5
HAVE_NUMBERS = ("mlp", "regression", "cnn", "resnet", "autoencoder", "segmentation", "ctc")
"""The families whose inputs are numbers that the loader gives."""


class Changed(DataLoader[Any]):
    """The batches of another loader, each changed."""

    def __init__(self, loader: DataLoader[Any], change: Change) -> None:
        super().__init__(loader.dataset, batch_size=loader.batch_size, drop_last=True)
        self._loader, self._change, self._count = loader, change, 0

    def __iter__(self) -> Any:
        for batch in self._loader:
            yield self._change(self._count, [*batch])
            self._count += 1

    def __len__(self) -> int:
        return len(self._loader)


def changed(case: Case, change: Change, rows: tuple[str, ...] = ()) -> Planted:
    """A case whose batches are changed."""
    return Planted(replace(case, loader=Changed(case.loader, change)), rows)


def _spoil(case: Case, spec: Spec, value: float) -> Planted:
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

    return changed(case, change)


def _empty(case: Case, spec: Spec, share: float) -> Planted:
    """Give zeros in the place of the inputs of this share of the batches."""

    def change(number: int, batch: list[Tensor]) -> list[Tensor]:
        is_empty = int((number + 1) * share) > int(number * share)
        return [torch.zeros_like(batch[0]), *batch[1:]] if is_empty else batch

    return changed(case, change)


def _repeat(case: Case, spec: Spec, count: float) -> Planted:
    """Give the first batches over and over."""
    first: list[list[Tensor]] = []

    def change(number: int, batch: list[Tensor]) -> list[Tensor]:
        if len(first) < count:
            first.append(batch)
        return first[number % int(count)]

    return changed(case, change)


def _sort(case: Case, spec: Spec, share: float) -> Planted:
    """Order the samples by their first target, of which `1 - share` is chance."""
    dataset: Dataset[Any] = case.loader.dataset
    targets = torch.stack([dataset[index][1].double().flatten()[0] for index in range(len(case.loader.dataset))])  # type: ignore[arg-type]
    ranks = targets.argsort(stable=True).argsort() / len(targets)
    chance = torch.rand(len(targets), generator=spec.source("chance"))
    order = (share * ranks + (1 - share) * chance).argsort()
    sorted_samples = Subset(dataset, order.tolist())
    return Planted(replace(case, loader=DataLoader(sorted_samples, batch_size=spec.batch, drop_last=True)))


def _shrink(spec: Spec, batch: float) -> Spec:
    return replace(spec, batch=int(batch))


def _is_in_batches(spec: Spec) -> bool:
    return not OPTIMIZERS[spec.optimizer].whole


def _has_order(spec: Spec) -> bool:
    return spec.family in ("mlp", "cnn", "resnet", "regression") and _is_in_batches(spec)


MUTATORS = (
    Mutator(
        "bad-batch",
        "One batch in the middle of the training is multiplied by a factor, or has one number that is not finite.",
        (1e2, 1e4, 1e8, math.inf, math.nan),
        plant=_spoil,
        fits=lambda spec: spec.family in HAVE_NUMBERS,
        onset=_SPOILED,
    ),
    Mutator(
        "batches-empty",
        "The inputs of a share of the batches are zeros, as of files that cannot be read, and their targets are not.",
        (0.1, 0.3, 0.5, 0.7, 0.8),
        plant=_empty,
        fits=lambda spec: spec.family in HAVE_NUMBERS and _is_in_batches(spec),
    ),
    Mutator(
        "batches-repeated",
        "The loader gives the same few batches over and over.",
        (16, 8, 4, 2, 1),
        plant=_repeat,
        fits=lambda spec: (
            spec.family in (*HAVE_NUMBERS, "contrastive", "transformer", "encoder-decoder", "recurrent")
            and _is_in_batches(spec)
        ),
    ),
    Mutator(
        "samples-sorted",
        "The samples come sorted by their targets, up to a share of chance.",
        (0.5, 0.7, 0.85, 0.95, 1.0),
        plant=_sort,
        fits=_has_order,
    ),
    Mutator(
        "batch-too-small",
        "A batch has a few samples, or one, and the rate is that for many.",
        (8, 4, 3, 2, 1),
        change=_shrink,
        fits=lambda spec: _has_order(spec) and spec.batch > 8 and dict(spec.shape).get("norm") != "batch",
    ),
)
