"""Tricks: legitimate things that people do, which look odd to a rule that has not seen them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

import torch
from lightning.pytorch.callbacks import EMAWeightAveraging, WeightAveraging
from torch import Tensor, nn
from torch.distributions import Beta
from torch.nn.utils import parametrizations, parametrize, prune
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

from benchmarks.trainings.families.regression import is_scaled
from benchmarks.trainings.layers import DENSE, first_float, hidden_layers, layers_of
from benchmarks.trainings.optimizers import OPTIMIZERS, adapts, has_sparse_tables, is_manual
from benchmarks.trainings.spec import Spec
from benchmarks.trainings.unfreezing import with_callback, with_unfreezing
from galleries.health.training import Case


class Trick(NamedTuple):
    """Something that changes a case.

    Args:
        apply: changes the module of a case, or returns another case.
        fits: whether a training can have it.
    """

    apply: Callable[[Case, Spec], Case]
    fits: Callable[[Spec], bool] = lambda spec: True


def _can_clip(spec: Spec) -> bool:
    """Whether Lightning clips.

    With mixed precision it refuses an optimizer that could undo the scale of a loss itself. It cannot clip sparse gradients,
    nor those of a module that takes its steps itself, and it would clip within each step of LBFGS.
    """
    is_refused = "fused" in spec.optimizer and spec.precision == "bf16-mixed"
    return not (is_refused or is_manual(spec) or has_sparse_tables(spec) or spec.optimizer == "lbfgs")


def _is_single(spec: Spec) -> bool:
    """Whether one optimizer has all parameters, and may get another group of them."""
    return not (is_manual(spec) or OPTIMIZERS[spec.optimizer].whole or spec.optimizer == "sparse-adam")


def _with_options(case: Case, spec: Spec, **options: Any) -> Case:
    return replace(case, trainer={**case.trainer, **options})


def _each_hidden(change: Callable[[nn.Module], Any], case: Case, spec: Spec) -> Case:
    for _, layer in hidden_layers(case.module, DENSE):
        change(layer)
    return case


def _average(case: Case, spec: Spec) -> Case:
    """Keep a moving average of the weights outside of the model, as users of EMA do."""
    model: Any = case.module.model
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))

    def update(module: Any, *args: Any) -> None:
        average.to(module.dtype).update_parameters(module.model)

    case.module.on_train_batch_end = partial(update, case.module)
    return case


def _swa(case: Case, spec: Spec) -> Case:
    """Average the weights of the last part of the training, and end with the average."""
    return with_callback(case, _Late(spec.steps * 2 // 3))


class _Late(WeightAveraging):
    """Averages weights from a step on."""

    def __init__(self, first: int) -> None:
        super().__init__(device="cpu")
        self.first = first

    def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
        return step_idx is not None and step_idx >= self.first


def _ema(case: Case, spec: Spec) -> Case:
    """Keep a moving average of the module by a callback of Lightning, and end with the average."""
    return with_callback(case, EMAWeightAveraging(device="cpu", decay=0.95))


def _unfreeze_first(case: Case, spec: Spec) -> Case:
    return with_unfreezing(case, hidden_layers(case.module)[0][1], 1)


def _can_unfreeze(spec: Spec) -> bool:
    """Whether an epoch ends within the training, so that the layer is trained too."""
    is_long = spec.steps * spec.accumulate * spec.batch > 2 * 2048
    return spec.family in ("mlp", "cnn", "resnet") and _is_single(spec) and is_long


class _Binary(nn.Module):
    """Replaces weights by their signs times their mean size; gradients pass unchanged."""

    def forward(self, weight: Tensor) -> Tensor:
        return weight + (weight.sign() * weight.abs().mean() - weight).detach()


def _binary(layer: nn.Module) -> None:
    parametrize.register_parametrization(layer, "weight", _Binary())


def _mixup(case: Case, spec: Spec) -> Case:
    """Learn from mixtures of two samples."""
    module: Any = case.module

    def mixed(batch: Any) -> Tensor:
        inputs, labels = batch
        share, order = float(Beta(0.4, 0.4).sample()), torch.randperm(len(labels))
        outputs = module(share * inputs + (1 - share) * inputs[order])
        return share * module.criterion(outputs, labels) + (1 - share) * module.criterion(outputs, labels[order])

    module.loss = mixed
    return case


def _prior_head(case: Case, spec: Spec) -> Case:
    """Let the biases of the head begin at the best constant prediction."""
    head: Any = layers_of(case.module)[-1][1]
    data: Any = case.loader.dataset
    targets = data.tensors[1]
    if targets.is_floating_point():
        best = targets.mean(0) / (spec["scale"] if is_scaled(spec) else 1.0)
    else:
        shares = (targets.flatten().bincount(minlength=len(head.bias)) + 1) / (targets.numel() + len(head.bias))
        best = shares.logit() if spec.loss == "one-against-all" else shares.log()
    with torch.no_grad():
        head.bias.copy_(best)
    return case


def _unchanged(case: Case, spec: Spec) -> Case:
    return case


def _freeze_first(case: Case, spec: Spec) -> Case:
    _, layer = hidden_layers(case.module)[0]
    layer.requires_grad_(False)
    return case


def _zero_head(case: Case, spec: Spec) -> Case:
    head: Any = layers_of(case.module)[-1][1]
    nn.init.zeros_(head.weight)
    return case


def _noise(case: Case, spec: Spec) -> Case:
    """Add noise to each input, as an augmentation does."""

    def noisy(module: nn.Module, args: tuple[Any, ...]) -> Any:
        first = first_float(args)
        if first is None or not module.training:
            return None
        return (first + 0.1 * torch.randn_like(first), *args[1:])

    model: Any = case.module.model
    model.register_forward_pre_hook(noisy)
    return case


def _recompute(case: Case, spec: Spec) -> Case:
    """Recompute the activations of the first hidden layer in the backward pass."""
    _, layer = hidden_layers(case.module, DENSE)[0]
    layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
    return case


def _has_hidden(spec: Spec) -> bool:
    return spec.family in ("mlp", "regression", "cnn", "resnet", "autoencoder", "graph")


def _is_copied(spec: Spec) -> bool:
    """Whether a copy of the module can be kept: a pruned weight cannot be copied, and one average is enough."""
    return not {"pruned", "average", "ema", "swa"} & {*spec.tricks}


def _can_average(spec: Spec) -> bool:
    """Whether Lightning keeps averages: it does not expect two optimizers, nor layers that are unfrozen later."""
    return _is_copied(spec) and not is_manual(spec) and "unfrozen-first" not in spec.tricks and spec.family != "finetuning"


TRICKS: Final[Mapping[str, Trick]] = {
    "clip": Trick(partial(_with_options, gradient_clip_val=1.0), _can_clip),
    "clip-always": Trick(partial(_with_options, gradient_clip_val=0.05), lambda spec: adapts(spec) and _can_clip(spec)),
    "weight-norm": Trick(partial(_each_hidden, parametrizations.weight_norm), _has_hidden),
    "spectral-norm": Trick(partial(_each_hidden, parametrizations.spectral_norm), _has_hidden),
    "pruned": Trick(
        partial(_each_hidden, partial(prune.l1_unstructured, name="weight", amount=0.3)),
        lambda spec: _has_hidden(spec) and _is_copied(spec),
    ),
    "binary": Trick(partial(_each_hidden, _binary), _has_hidden),
    "frozen-first": Trick(
        _freeze_first,
        lambda spec: spec.family in ("mlp", "cnn", "resnet", "transformer") and not tied(spec) and _has_free_first(spec),
    ),
    "unfrozen-first": Trick(_unfreeze_first, lambda spec: _can_unfreeze(spec) and _has_free_first(spec) and _is_copied(spec)),
    # Biases and norms are a second group of parameters, without a decay.
    "groups": Trick(_unchanged, lambda spec: _is_single(spec) and OPTIMIZERS[spec.optimizer].decays),
    # The direction of a code that is 0 for all samples has no gradient, so that such an encoder never begins to learn.
    "zero-head": Trick(_zero_head, lambda spec: not tied(spec) and spec.family != "contrastive"),
    "prior-head": Trick(
        _prior_head,
        lambda spec: spec.family in ("mlp", "regression", "cnn", "resnet", "transformer") and spec.loss != "multi-margin",
    ),
    "noise": Trick(
        _noise, lambda spec: spec.family in ("mlp", "regression", "cnn", "resnet") and not OPTIMIZERS[spec.optimizer].whole
    ),
    "mixup": Trick(_mixup, lambda spec: spec.family in ("mlp", "cnn", "resnet")),
    "recompute": Trick(_recompute, _has_hidden),
    # The average copies the model, so it comes after all that change layers. A pruned weight cannot be copied.
    "average": Trick(_average, _is_copied),
    "ema": Trick(_ema, _can_average),
    "swa": Trick(_swa, _can_average),
}
"""All tricks, in the order in which those of a training are applied."""
ANYWHERE: Final = ("clip", "clip-always", "average", "ema", "swa", "groups")
"""Tricks that leave layers as they are."""
_CHANGING: Final = {"weight-norm", "spectral-norm", "pruned", "binary", "recompute"}
"""Tricks that change what a hidden layer is. A training has at most one of them."""


def _has_free_first(spec: Spec) -> bool:
    return not {"frozen-first", "unfrozen-first"} & {*spec.tricks}


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
