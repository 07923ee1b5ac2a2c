"""Faults of the first weights: their scale, and biases that shut activations."""

from __future__ import annotations

import torch
from torch import nn

from benchmarks.trainings.layers import DENSE, hidden_layers, layers_of, weights_of
from benchmarks.trainings.mutators.mutator import Mutator, Planted
from benchmarks.trainings.spec import Spec
from benchmarks.trainings.tricks import tied
from galleries.health.training import Case


def _middle(case: Case, kinds: tuple[type[nn.Module], ...] = DENSE) -> tuple[str, nn.Module]:
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
            weight *= factor
    return Planted(case, _rows_of(case, name))


def _shut(case: Case, spec: Spec, shift: float) -> Planted:
    name, layer = _middle(case)
    with torch.no_grad():
        layer.bias -= shift
    return Planted(case, _rows_of(case, name))


def _is_plain(spec: Spec) -> bool:
    return not {"weight-norm", "spectral-norm", "pruned", "frozen-first"} & {*spec.tricks} and not tied(spec)


def _can_shut(spec: Spec) -> bool:
    families = ("mlp", "regression", "cnn", "autoencoder", "graph")
    has_norm = dict(spec.shape).get("norm", "none") != "none"
    return _is_plain(spec) and spec.family in families and spec.activation == "relu" and not has_norm


MUTATORS = (
    Mutator(
        "weights-too-large",
        "The weights of the layer in the middle start a factor too large.",
        "pattern",
        (3, 10, 30, 100, 1000),
        ("PoorInitialization", "OddInitialization", "SaturatedActivation", "ExplodingGradient"),
        ("InitializationTooLarge",),
        ("param", "rms"),
        plant=_rescale,
        fits=lambda spec: _is_plain(spec) and spec.family not in ("ranking", "recurrent"),
    ),
    Mutator(
        "weights-too-small",
        "The weights of the layer in the middle start a factor too small.",
        "pattern",
        (0.3, 0.1, 0.01, 1e-4, 0.0),
        ("PoorInitialization", "OddInitialization", "VanishingGradient", "NoGradient", "DeadLayer", "ConstantOutput"),
        ("InitializationTooSmall",),
        ("param", "rms"),
        plant=_rescale,
        fits=lambda spec: _is_plain(spec) and spec.family not in ("ranking", "recurrent"),
    ),
    Mutator(
        "activations-shut",
        "The biases of the layer in the middle start so low that its activations give mostly 0.",
        "pattern",
        (1, 2, 4, 10, 100),
        ("DeadLayer", "DeadUnits"),
        ("ActivationsDead",),
        ("output", "zero_fraction"),
        plant=_shut,
        fits=_can_shut,
    ),
)
