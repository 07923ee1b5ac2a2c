"""Faults of weights: their scale at the start, biases that shut activations, and code that changes them in between."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from benchmarks.trainings.layers import DENSE, hidden_layers, layers_of, weights_of
from benchmarks.trainings.mutators.mutator import Mutator, Planted, after, is_usual
from benchmarks.trainings.spec import Spec
from benchmarks.trainings.tricks import tied
from galleries.health.training import Case


def _middle(case: Case, kinds: tuple[type[nn.Module], ...] = DENSE) -> tuple[str, Any]:
    """The hidden layer in the middle of the model; the last layer of a model without hidden ones."""
    layers = hidden_layers(case.module, kinds) or layers_of(case.module)
    return layers[len(layers) // 2]


def _rows_of(case: Case, name: str) -> tuple[str, ...]:
    """A layer, its parameters, and the two modules after it: its norm and its activation."""
    names = [each for each, module in case.module.named_modules() if not [*module.children()]]
    position = names.index(name)
    return (f"{name}*", *names[position + 1 : position + 3])


def _rescale(case: Case, spec: Spec, factor: float) -> Planted:
    name, layer = _middle(case)
    with torch.no_grad():
        for weight in weights_of(layer):
            weight.mul_(factor)
    return Planted(case, _rows_of(case, name))


def _shut(case: Case, spec: Spec, shift: float) -> Planted:
    name, layer = _middle(case)
    with torch.no_grad():
        layer.bias -= shift
    return Planted(case, _rows_of(case, name))


def _amplify(case: Case, spec: Spec, factor: float) -> Planted:
    """Multiply the weights from one time step to the next."""
    names = [name for name, _ in case.module.named_parameters() if "weight_hh" in name]
    with torch.no_grad():
        for name in names:
            case.module.get_parameter(name).mul_(factor)
    return Planted(case, ("model.recurrent*",))


def _enlarge_table(case: Case, spec: Spec, factor: float) -> Planted:
    with torch.no_grad():
        case.module.get_parameter("model.tokens.weight").mul_(factor)
    return Planted(case, ("model.tokens*", "model.head*"))


def _reset(case: Case, spec: Spec, share: float) -> Planted:
    """Draw the weights of a share of the hidden layers anew, once."""
    layers, module, onset = hidden_layers(case.module), case.module, int(_LATE * spec.steps)
    chosen: list[tuple[str, Any]] = layers[: max(1, math.ceil(share * len(layers)))]
    done: list[int] = []

    def reset(*args: Any) -> None:
        if module.global_step >= onset and not done:
            done.append(module.global_step)
            for _, layer in chosen:
                layer.reset_parameters()

    after(module, "on_train_batch_start", reset)
    return Planted(case, tuple(f"{name}*" for name, _ in chosen))


def _shrink(case: Case, spec: Spec, factor: float) -> Planted:
    """Multiply all weights by a factor before each batch."""
    module = case.module

    def shrink(*args: Any) -> None:
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.mul_(factor)

    after(module, "on_train_batch_start", shrink)
    return Planted(case)


_LATE = 0.9


def _is_plain(spec: Spec) -> bool:
    tricks = {"weight-norm", "spectral-norm", "pruned", "binary", "frozen-first", "unfrozen-first"}
    return not tricks & {*spec.tricks} and not tied(spec)


def _can_shut(spec: Spec) -> bool:
    families, kinds = ("mlp", "regression", "cnn", "autoencoder", "graph"), ("relu", "gelu", "silu", "mish", "hardswish")
    has_norm = dict(spec.shape).get("norm", "none") != "none"
    return _is_plain(spec) and spec.family in families and spec.activation in kinds and not has_norm


MUTATORS = (
    Mutator(
        "weights-too-large",
        "The weights of the layer in the middle start a factor too large.",
        (3, 10, 30, 100, 1000),
        plant=_rescale,
        fits=lambda spec: _is_plain(spec) and spec.family not in ("ranking", "clicks", "recurrent", "finetuning"),
    ),
    Mutator(
        "weights-too-small",
        "The weights of the layer in the middle start a factor too small.",
        (0.3, 0.1, 0.01, 1e-4, 0.0),
        plant=_rescale,
        fits=lambda spec: _is_plain(spec) and spec.family not in ("ranking", "clicks", "recurrent", "finetuning"),
    ),
    Mutator(
        "activations-shut",
        "The biases of the layer in the middle start so low that its activations give mostly 0.",
        (1, 2, 4, 10, 100),
        plant=_shut,
        fits=_can_shut,
    ),
    Mutator(
        "recurrence-amplifies",
        "The weights from one time step to the next start a factor too large.",
        (2, 4, 10, 30, 100),
        plant=_amplify,
        fits=lambda spec: spec.family == "recurrent",
    ),
    Mutator(
        "tied-table-too-large",
        "The embedding that is the head too starts a factor too large, as N(0, 1) is for a head.",
        (3, 10, 30, 100, 1000),
        plant=_enlarge_table,
        fits=lambda spec: spec.family == "transformer" and tied(spec),
    ),
    Mutator(
        "weights-drawn-anew",
        "The weights of a share of the hidden layers are drawn anew near the end of the training.",
        (0.01, 0.3, 0.5, 0.7, 1.0),
        plant=_reset,
        fits=lambda spec: _is_plain(spec) and is_usual(spec),
        onset=_LATE,
    ),
    Mutator(
        "weights-shrunk-by-code",
        "Code multiplies all weights by a factor before each batch.",
        (0.999, 0.99, 0.95, 0.8, 0.5),
        plant=_shrink,
        fits=lambda spec: is_usual(spec) and not {"weight-norm", "spectral-norm", "binary"} & {*spec.tricks},
    ),
)
