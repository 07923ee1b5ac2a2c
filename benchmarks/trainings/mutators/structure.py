"""Faults of structure: layers that are one object, paths that are missing, activations that are none or saturate, masks."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.trainings.layers import hidden_layers, layers_of
from benchmarks.trainings.mutators.mutator import Mutator, Planted
from benchmarks.trainings.parts import ACTIVATIONS
from benchmarks.trainings.spec import Spec
from benchmarks.trainings.tricks import tied
from galleries.health.training import Case

_STACKED = ("mlp", "regression", "cnn", "resnet", "autoencoder", "contrastive")
"""The families whose activations are modules between layers."""


def _activations(module: nn.Module) -> list[tuple[str, nn.Module]]:
    kinds: tuple[Any, ...] = tuple(each for each in ACTIVATIONS.values() if isinstance(each, type))
    return [(name, each) for name, each in module.named_modules() if isinstance(each, kinds)]


def _first(found: list[tuple[str, nn.Module]], share: float) -> list[tuple[str, nn.Module]]:
    return found[: max(1, math.ceil(share * len(found)))]


def _replace(module: nn.Module, name: str, other: nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    setattr(module.get_submodule(parent), last, other)


def _share_layers(case: Case, spec: Spec, share: float) -> Planted:
    """Put one object in the place of a share of the layers after the first of their shape."""
    seen: dict[Any, nn.Module] = {}
    repeated = []
    for name, layer in hidden_layers(case.module):
        key = (type(layer), *(tuple(each.shape) for each in layer.parameters()))
        if key in seen:
            repeated.append((name, seen[key]))
        seen.setdefault(key, layer)
    chosen = _first(repeated, share) if repeated else []
    for name, layer in chosen:
        _replace(case.module, name, layer)
    return Planted(case)


def _leave_out(case: Case, spec: Spec, share: float) -> Planted:
    """Take away this share of the identity beside each branch."""

    def less(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return output - share * args[0] if output.shape == args[0].shape else output

    blocks = [(name, each) for name, each in case.module.named_modules() if type(each).__name__ in ("Residual", "Block")]
    for _, block in blocks:
        block.register_forward_hook(less)
    return Planted(case, tuple(f"{name}*" for name, _ in blocks))


def _remove_activations(case: Case, spec: Spec, share: float) -> Planted:
    for name, _ in _first(_activations(case.module), share):
        _replace(case.module, name, nn.Identity())
    return Planted(case)


class _Steep(nn.Module):
    """Multiplies its input."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, inputs: Tensor) -> Tensor:
        return self.factor * inputs


def _saturate(case: Case, spec: Spec, factor: float) -> Planted:
    names = [name for name, _ in _activations(case.module)]
    for name in names:
        _replace(case.module, name, nn.Sequential(_Steep(factor), nn.Tanh()))
    return Planted(case, tuple(f"{name}*" for name in names))


def _deepen(spec: Spec, depth: float) -> Spec:
    shape = {**dict(spec.shape), "depth": int(depth), "norm": "none", "residual": False}
    return replace(spec, activation="sigmoid", initialisation="default", shape=tuple(shape.items()))


def _cut_off(case: Case, spec: Spec, slope: float) -> Planted:
    """Multiply the negative outputs of the model by a small slope, as an activation behind the last layer does."""
    name, head = layers_of(case.module)[-1]

    def cut(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        return torch.where(output < 0, slope * output, output)

    head.register_forward_hook(cut)
    return Planted(case, (f"{name}*", "model", ""))


def _mask_nothing(case: Case, spec: Spec, share: float) -> Planted:
    """Let attention see the future in a share of the batches of training."""
    source = spec.source("masks")

    def choose(module: Any, args: Any) -> None:
        is_open = module.training and float(torch.rand((), generator=source)) < share
        for layer in module.layers:
            layer.is_causal = not is_open

    case.module.get_submodule("model").register_forward_pre_hook(choose)
    return Planted(case)


def _attend_to_batch(case: Case, spec: Spec, share: float) -> Planted:
    """Let a share of what attention gives be mixed over the samples and not over the tokens."""

    def mixed(own: Any, inputs: Tensor) -> Tensor:
        return (1 - share) * own(inputs) + share * own(inputs.transpose(0, 1)).transpose(0, 1)

    model: Any = case.module.model
    for layer in model.layers:
        layer.attention = partial(mixed, layer.attention)
    return Planted(case)


def _scale_positions(case: Case, spec: Spec, factor: float) -> Planted:
    def scaled(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        return factor * output

    case.module.get_submodule("model.positions").register_forward_hook(scaled)
    return Planted(case, ("model.positions*", "model.layers", "model.layers.0*"))


def _has_residual(spec: Spec) -> bool:
    return spec.family in ("mlp", "cnn") and bool(spec["residual"]) and spec["depth"] > 2


def _has_twins(spec: Spec) -> bool:
    least = {"mlp": 3, "regression": 3, "cnn": 2, "contrastive": 3, "graph": 3}
    has_twins = spec.family == "transformer" and spec["depth"] > 1 and not tied(spec)
    return not spec.tricks and (has_twins or spec.family in least and spec["depth"] >= least[spec.family])


def _reverses(spec: Spec) -> bool:
    return spec.family == "transformer" and spec["task"] == "reverse"


MUTATORS = (
    Mutator(
        "layers-are-one",
        "A share of the hidden layers is one object, as in `[layer] * n`.",
        (0.01, 0.4, 0.6, 0.8, 1.0),
        plant=_share_layers,
        fits=_has_twins,
    ),
    Mutator(
        "identity-left-out",
        "Residual blocks lack a share of the identity beside their branch.",
        (0.3, 0.6, 0.8, 0.95, 1.0),
        plant=_leave_out,
        fits=_has_residual,
    ),
    Mutator(
        "activations-missing",
        "A share of the activations is missing, so that layers follow layers.",
        (0.01, 0.3, 0.5, 0.7, 1.0),
        plant=_remove_activations,
        fits=lambda spec: spec.family in _STACKED,
    ),
    Mutator(
        "activations-saturate",
        "Activations are a tanh of a multiple of their input.",
        (5, 20, 100, 1e3, 1e5),
        plant=_saturate,
        fits=lambda spec: spec.family in _STACKED,
    ),
    Mutator(
        "sigmoids-too-deep",
        "The network is a deep row of sigmoids without norms.",
        (4, 6, 8, 12, 20),
        change=_deepen,
        fits=lambda spec: spec.family in ("mlp", "contrastive") and not spec.tricks,
    ),
    Mutator(
        "outputs-cut-off",
        "An activation behind the last layer lets through hardly anything below 0.",
        (0.5, 0.1, 0.03, 0.01, 0.0),
        plant=_cut_off,
        fits=lambda spec: spec.family in ("regression", "mlp", "cnn", "resnet") and "zero-head" not in spec.tricks,
    ),
    Mutator(
        "future-not-masked",
        "Attention sees the tokens that it is to predict in a share of the batches.",
        (0.3, 0.5, 0.7, 0.9, 1.0),
        plant=_mask_nothing,
        fits=lambda spec: spec.family == "transformer" and spec["task"] == "chain",
    ),
    Mutator(
        "attention-over-batch",
        "A share of attention is over the samples of the batch and not over the tokens.",
        (0.3, 0.6, 0.9, 0.97, 1.0),
        plant=_attend_to_batch,
        fits=_reverses,
    ),
    Mutator(
        "positions-too-large",
        "The embedding of positions is a multiple of what it should be, beside that of tokens.",
        (10, 30, 100, 300, 1e4),
        plant=_scale_positions,
        fits=lambda spec: spec.family == "transformer",
    ),
    Mutator(
        "positions-missing",
        "The embedding of positions reaches the layers as a fraction of itself.",
        (0.3, 0.1, 0.03, 0.01, 0.0),
        plant=_scale_positions,
        fits=_reverses,
    ),
)
