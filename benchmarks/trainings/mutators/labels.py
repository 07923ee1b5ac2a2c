"""Faults of labels and targets: those of other samples, of other batches, of one class only, or of another scale."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.trainings.mutators.batches import changed
from benchmarks.trainings.mutators.mutator import Mutator, Planted
from benchmarks.trainings.optimizers import OPTIMIZERS
from benchmarks.trainings.spec import Spec
from galleries.health.training import Case

_CLASSIFIERS = ("mlp", "cnn", "resnet")
_SEQUENCES = ("transformer", "recurrent", "encoder-decoder")


def _replaced(case: Case, spec: Spec, share: float, others: Callable[[list[Tensor]], Tensor]) -> Planted:
    """Replace the targets of a share of the samples by others."""
    source = spec.source("wrong targets")

    def change(number: int, batch: list[Tensor]) -> list[Tensor]:
        inputs, targets, *rest = batch
        is_wrong = torch.rand(len(targets), generator=source) < share
        shape = (-1, *[1] * (targets.dim() - 1))
        return [inputs, torch.where(is_wrong.view(shape), others(batch), targets), *rest]

    return changed(case, change)


def _shuffle(case: Case, spec: Spec, share: float) -> Planted:
    source = spec.source("order of labels")
    return _replaced(case, spec, share, lambda batch: batch[1][torch.randperm(len(batch[1]), generator=source)])


def _lag(case: Case, spec: Spec, share: float) -> Planted:
    """Give the targets of the batch before."""
    before: list[Tensor] = []

    def others(batch: list[Tensor]) -> Tensor:
        before.append(batch[1])
        return before.pop(0) if len(before) > 1 else batch[1]

    return _replaced(case, spec, share, others)


def _one_for_all(case: Case, spec: Spec, share: float) -> Planted:
    return _replaced(case, spec, share, lambda batch: torch.zeros_like(batch[1]))


def _shift(case: Case, spec: Spec, share: float) -> Planted:
    """Give the target that is due two tokens later."""
    return _replaced(case, spec, share, lambda batch: batch[1].roll(-2, dims=1))


def _give_inputs(case: Case, spec: Spec, share: float) -> Planted:
    return _replaced(case, spec, share, lambda batch: batch[0])


def _drop_classes(case: Case, spec: Spec, share: float) -> Planted:
    """Replace samples of the highest classes by others of the batch."""

    def change(number: int, batch: list[Tensor]) -> list[Tensor]:
        inputs, labels, *rest = batch
        has_ten = spec.family != "mlp" or spec["data"] == "digits"
        classes = 10 if has_ten else spec["classes"]
        kept = (labels < max(1, round((1 - share) * classes))).nonzero().flatten()
        if not len(kept):
            return [inputs, torch.zeros_like(labels), *rest]
        chosen = kept[torch.arange(len(labels)) % len(kept)]
        return [inputs[chosen], labels[chosen], *rest]

    return changed(case, change)


def _scale(case: Case, spec: Spec, factor: float) -> Planted:
    planted = changed(case, lambda number, batch: [batch[0], factor * batch[1]])
    return planted._replace(leaving=lambda outputs: outputs / factor)


def _has_targets(spec: Spec) -> bool:
    return (
        spec.family in (*_CLASSIFIERS, *_SEQUENCES, "regression", "ranking")
        and spec.batch > 1
        and not OPTIMIZERS[spec.optimizer].whole
    )


def _is_chain(spec: Spec) -> bool:
    return spec.family in ("transformer", "recurrent") and spec["task"] == "chain"


MUTATORS = (
    Mutator(
        "labels-shuffled",
        "A share of the samples has the labels of others.",
        (0.3, 0.5, 0.7, 0.9, 1.0),
        plant=_shuffle,
        fits=_has_targets,
    ),
    Mutator(
        "labels-of-batch-before",
        "A share of the samples has the labels of the batch before.",
        (0.3, 0.5, 0.7, 0.9, 1.0),
        plant=_lag,
        fits=_has_targets,
    ),
    Mutator(
        "labels-constant",
        "A share of the samples has the label 0, whatever they are.",
        (0.3, 0.5, 0.7, 0.9, 1.0),
        plant=_one_for_all,
        fits=lambda spec: spec.family in _CLASSIFIERS,
    ),
    Mutator(
        "classes-missing",
        "The training has no samples of a share of the classes.",
        (0.1, 0.3, 0.5, 0.7, 0.9),
        plant=_drop_classes,
        fits=lambda spec: spec.family in _CLASSIFIERS,
    ),
    Mutator(
        "targets-shifted",
        "A share of the sequences has the targets of two tokens later.",
        (0.3, 0.5, 0.7, 0.9, 1.0),
        plant=_shift,
        fits=_is_chain,
    ),
    Mutator(
        "targets-are-inputs",
        "A share of the sequences has the given tokens as its targets.",
        (0.3, 0.5, 0.7, 0.9, 1.0),
        plant=_give_inputs,
        fits=_is_chain,
    ),
    Mutator(
        "targets-too-large",
        "All targets are multiplied by a factor.",
        (30, 300, 3e3, 3e4, 1e6),
        plant=_scale,
        fits=lambda spec: spec.family == "regression",
    ),
)
