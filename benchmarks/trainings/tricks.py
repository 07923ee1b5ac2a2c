"""Tricks: legitimate things that people do, which look odd to a rule that has not seen them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

import torch
from lightning.pytorch import LightningModule
from torch import nn
from torch.nn.utils import parametrizations, prune
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

from benchmarks.trainings.layers import DENSE, first_float, hidden_layers, layers_of
from benchmarks.trainings.spec import Spec
from galleries.health.training import Case


class Trick(NamedTuple):
    """Something that changes a case.

    Args:
        apply: changes the module of a case, or returns another case.
        fits: whether a training can have it.
    """

    apply: Callable[[Case, Spec], Case]
    fits: Callable[[Spec], bool] = lambda spec: True


def _adapts(spec: Spec) -> bool:
    """Whether the length of a step does not depend on that of the gradient."""
    return "ada" in spec.optimizer or spec.optimizer in ("rmsprop",)


def _can_clip(spec: Spec) -> bool:
    """Whether Lightning clips: with mixed precision it refuses an optimizer that could undo the scale of a loss itself."""
    return not (spec.optimizer == "adamw-fused" and spec.precision == "bf16-mixed")


def _with_options(case: Case, spec: Spec, **options: Any) -> Case:
    return replace(case, trainer={**case.trainer, **options})


def _each_hidden(change: Callable[[nn.Module], Any], case: Case, spec: Spec) -> Case:
    for _, layer in hidden_layers(case.module, DENSE):
        change(layer)
    return case


def _average(case: Case, spec: Spec) -> Case:
    """Keep a moving average of the weights outside of the model, as users of EMA do."""
    average = AveragedModel(case.module.model, multi_avg_fn=get_ema_multi_avg_fn(0.99))

    def update(module: LightningModule, *args: Any) -> None:
        average.update_parameters(module.model)

    case.module.on_train_batch_end = partial(update, case.module)
    return case


def _freeze_first(case: Case, spec: Spec) -> Case:
    _, layer = hidden_layers(case.module)[0]
    layer.requires_grad_(False)
    return case


def _zero_head(case: Case, spec: Spec) -> Case:
    _, head = layers_of(case.module)[-1]
    nn.init.zeros_(head.weight)
    return case


def _noise(case: Case, spec: Spec) -> Case:
    """Add noise to each input, as an augmentation does."""

    def noisy(module: nn.Module, args: tuple[Any, ...]) -> Any:
        first = first_float(args)
        if first is None or not module.training:
            return None
        return (first + 0.1 * torch.randn_like(first), *args[1:])

    case.module.model.register_forward_pre_hook(noisy)
    return case


def _recompute(case: Case, spec: Spec) -> Case:
    """Recompute the activations of the first hidden layer in the backward pass."""
    _, layer = hidden_layers(case.module, DENSE)[0]
    layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
    return case


def _has_hidden(spec: Spec) -> bool:
    return spec.family in ("mlp", "regression", "cnn", "autoencoder", "graph")


TRICKS: Final[Mapping[str, Trick]] = {
    "clip": Trick(partial(_with_options, gradient_clip_val=1.0), _can_clip),
    "clip-always": Trick(partial(_with_options, gradient_clip_val=0.05), lambda spec: _adapts(spec) and _can_clip(spec)),
    "weight-norm": Trick(partial(_each_hidden, parametrizations.weight_norm), _has_hidden),
    "spectral-norm": Trick(partial(_each_hidden, parametrizations.spectral_norm), _has_hidden),
    "pruned": Trick(
        partial(_each_hidden, partial(prune.l1_unstructured, name="weight", amount=0.3)),
        lambda spec: _has_hidden(spec) and "average" not in spec.tricks,
    ),
    "frozen-first": Trick(_freeze_first, lambda spec: spec.family in ("mlp", "cnn", "transformer") and not tied(spec)),
    # The direction of a code that is 0 for all samples has no gradient, so that such an encoder never begins to learn.
    "zero-head": Trick(_zero_head, lambda spec: not tied(spec) and spec.family != "contrastive"),
    "noise": Trick(_noise, lambda spec: spec.family in ("mlp", "regression", "cnn")),
    "recompute": Trick(_recompute, _has_hidden),
    # The average copies the model, so it comes after all that change layers. A pruned weight cannot be copied.
    "average": Trick(_average, lambda spec: "pruned" not in spec.tricks),
}
"""All tricks, in the order in which those of a training are applied."""
_CHANGING: Final = {"weight-norm", "spectral-norm", "pruned", "recompute"}
"""Tricks that change what a hidden layer is. A training has at most one of them."""


def tied(spec: Spec) -> bool:
    """Whether the head shares its weight with the embedding."""
    return dict(spec.shape).get("tied", False)


def fitting(spec: Spec) -> list[str]:
    """The tricks that may be added to those of a spec."""
    has_changing = not _CHANGING.isdisjoint(spec.tricks)
    return [
        name
        for name, trick in TRICKS.items()
        if name not in spec.tricks and trick.fits(spec) and not (has_changing and name in _CHANGING)
    ]


def applied(case: Case, spec: Spec) -> Case:
    """The case with the tricks of its spec."""
    for name, trick in TRICKS.items():
        case = trick.apply(case, spec) if name in spec.tricks else case
    return case
