"""Faults of the loss: its sign, its scale, its shapes, and probabilities where it expects logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from benchmarks.trainings.mutators.mutator import Mutator, Planted
from benchmarks.trainings.mutators.optimizer import is_plain
from benchmarks.trainings.optimizers import OPTIMIZERS
from benchmarks.trainings.spec import Spec
from galleries.health.training import Case

Criterion = Callable[[Any, Tensor], Tensor]
_CLASSIFIERS = ("mlp", "cnn", "resnet", "transformer", "encoder-decoder", "graph")


def multiply(case: Case, factor: float) -> Planted:
    """Multiply the loss by a factor."""
    module: Any = case.module
    loss = module.loss

    def multiplied(batch: Any) -> Tensor:
        return factor * loss(batch)

    module.loss = multiplied
    return Planted(case)


def _with(case: Case, change: Callable[[Criterion], Criterion]) -> Planted:
    module: Any = case.module
    module.criterion = change(module.criterion)
    return Planted(case)


def _turn(case: Case, spec: Spec, share: float) -> Planted:
    return multiply(case, 1 - 2 * share)


def _scale(case: Case, spec: Spec, factor: float) -> Planted:
    return multiply(case, factor)


def _mixed(case: Case, share: float, wrong: Criterion) -> Planted:
    """Add a wrong loss, of which the sum has a share."""
    return _with(case, lambda right: lambda out, given: (1 - share) * right(out, given) + share * wrong(out, given))


def _broadcast(case: Case, spec: Spec, share: float) -> Planted:
    """Subtract targets [n] from predictions [n, 1], which gives [n, n]."""
    own: Any = case.module.criterion

    def wrong(outputs: Tensor, targets: Tensor) -> Tensor:
        rows = targets.flatten()[None]
        return own(outputs.expand(-1, rows.shape[1]), rows.expand(len(outputs), -1))

    return _mixed(case, share, wrong)


def _softmax_twice(case: Case, spec: Spec, share: float) -> Planted:
    """Give the criterion a mixture of logits and probabilities, or probabilities alone."""

    def given(logits: Tensor) -> Tensor:
        shares = logits.softmax(-1).to(logits)
        return shares if share == 1 else (1 - share) * logits + share * shares

    return _with(case, lambda own: lambda logits, labels: own(given(logits), labels))


def _wrong_axis(case: Case, spec: Spec, share: float) -> Planted:
    def wrong(logits: Tensor, labels: Tensor) -> Tensor:
        return -logits.log_softmax(0).gather(-1, labels[..., None]).mean()

    return _mixed(case, share, wrong)


def _logarithm(case: Case, spec: Spec, factor: float) -> Planted:
    """Take the logarithm of probabilities, which are 0 where logits are far apart."""

    def logarithm(logits: Tensor, labels: Tensor) -> Tensor:
        return -(factor * logits).softmax(-1).gather(-1, labels[..., None]).log().mean()

    return _with(case, lambda own: logarithm)


def _ignore(case: Case, spec: Spec, share: float) -> Planted:
    """Count no target of a share of the samples; a batch in which none is left has the loss 0."""
    source = spec.source("ignored")

    def ignoring(own: Criterion) -> Criterion:
        def loss(outputs: Tensor, targets: Tensor) -> Tensor:
            kept = torch.rand(len(targets), generator=source) >= share
            return own(outputs[kept], targets[kept]) if bool(kept.any()) else 0.0 * outputs.sum()

        return loss

    return _with(case, ignoring)


def _weigh_divergence(spec: Spec, factor: float) -> Spec:
    return _reshaped(spec, beta=spec["beta"] * factor)


def _heat(spec: Spec, factor: float) -> Spec:
    return _reshaped(spec, temperature=spec["temperature"] * factor)


def _reshaped(spec: Spec, **changes: Any) -> Spec:
    return replace(spec, shape=tuple({**dict(spec.shape), **changes}.items()))


def _takes_logits(spec: Spec) -> bool:
    is_chain = spec.family == "recurrent" and spec["task"] == "chain"
    return is_chain or (spec.family in _CLASSIFIERS and spec.loss in ("cross-entropy", "smoothed", "focal"))


def _has_one_target(spec: Spec) -> bool:
    return spec.family == "regression" and spec["targets"] == 1


MUTATORS = (
    Mutator(
        "sign-turned",
        "A share of the loss is added with the wrong sign; from a half on, it is maximised.",
        (0.5, 0.52, 0.6, 0.75, 1.0),
        plant=_turn,
    ),
    Mutator(
        "sum-for-mean",
        "The loss is a multiple of the mean, as a sum over samples or tokens is.",
        (10, 100, 1e3, 1e4, 1e6),
        plant=_scale,
        fits=is_plain,
    ),
    Mutator(
        "loss-divided-too-often",
        "The loss is a fraction of the mean, as one that is divided by the number of samples twice.",
        (0.1, 0.03, 0.01, 1e-3, 1e-5),
        plant=_scale,
        fits=is_plain,
    ),
    Mutator(
        "broadcast-in-loss",
        "A share of the loss compares each prediction with the targets of all samples: [n, 1] less [n] is [n, n].",
        (0.5, 0.8, 0.95, 0.99, 1.0),
        plant=_broadcast,
        fits=_has_one_target,
    ),
    Mutator(
        "softmax-twice",
        "The loss gets a mixture of logits and probabilities, and computes a softmax of it.",
        (0.5, 0.8, 0.95, 0.99, 1.0),
        plant=_softmax_twice,
        fits=_takes_logits,
    ),
    Mutator(
        "softmax-over-batch",
        "A share of the loss computes its softmax over the samples and not over the classes.",
        (0.5, 0.8, 0.95, 0.99, 1.0),
        plant=_wrong_axis,
        fits=lambda spec: _takes_logits(spec) and spec.batch > 1,
    ),
    Mutator(
        "logarithm-of-zero",
        "The loss is the logarithm of probabilities of logits that are a multiple of what they should be.",
        (3, 10, 30, 100, 1000),
        plant=_logarithm,
        fits=_takes_logits,
    ),
    Mutator(
        "targets-ignored",
        "The loss ignores the targets of a share of the samples.",
        (0.8, 0.95, 0.99, 0.999, 1.0),
        plant=_ignore,
        fits=lambda spec: (
            spec.family in ("mlp", "cnn", "resnet", "regression", "recurrent", "transformer")
            and not OPTIMIZERS[spec.optimizer].whole
        ),
    ),
    Mutator(
        "divergence-too-heavy",
        "The weight of the divergence of codes from their prior is multiplied by a factor.",
        (10, 100, 1e3, 1e4, 1e5),
        change=_weigh_divergence,
        fits=lambda spec: spec.family == "autoencoder" and spec["variational"],
    ),
    Mutator(
        "temperature-too-high",
        "The temperature of contrastive scores is multiplied by a factor, so that all of them are alike.",
        (5, 20, 100, 1e3, 1e5),
        change=_heat,
        fits=lambda spec: spec.family == "contrastive",
    ),
)
