"""Faults of gradients: cut, cleared too early, not cleared."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from torch import Tensor, nn

from benchmarks.trainings.layers import hidden_layers
from benchmarks.trainings.mutators.mutator import Mutator, Planted
from benchmarks.trainings.spec import Spec
from galleries.health.training import Case


def _without_graph(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach()
    return tuple(map(_without_graph, value)) if isinstance(value, tuple) else value


def _detach(case: Case, spec: Spec, share: float) -> Planted:
    """Detach the outputs of the first hidden layers."""

    def cut(module: nn.Module, args: Any, output: Any) -> Any:
        return _without_graph(output)

    layers = hidden_layers(case.module)
    chosen = layers[: max(1, math.ceil(share * len(layers)))]
    for _, layer in chosen:
        layer.register_forward_hook(cut)
    return Planted(case, tuple(f"{name}*" for name, _ in chosen))


def _clear(case: Case, spec: Spec, share: float) -> Planted:
    """Clear the gradients between backward and update, in this share of the updates."""
    module = case.module

    def clear(optimizer: Any) -> None:
        # The updates of a share are spread evenly: those at which the number of them grows by one.
        step = module.global_step
        if int((step + 1) * share) > int(step * share):
            optimizer.zero_grad()

    module.on_before_optimizer_step = clear
    return Planted(case)


def _keep(case: Case, spec: Spec, every: float) -> Planted:
    """Clear the gradients only before each so many updates."""
    module = case.module
    clear = module.optimizer_zero_grad

    def optimizer_zero_grad(module: Any, epoch: int, batch_idx: int, optimizer: Any) -> None:
        if module.global_step % every == 0:
            clear(epoch, batch_idx, optimizer)

    module.optimizer_zero_grad = partial(optimizer_zero_grad, module)
    return Planted(case)


MUTATORS = (
    Mutator(
        "cut-by-detach",
        "The outputs of a share of the hidden layers, the first ones, are detached from the graph.",
        "fact",
        (0.01, 0.3, 0.5, 0.7, 1.0),
        ("NoGradient", "UnchangedParameter"),
        ("GradientCut",),
        ("grad", "count"),
        plant=_detach,
        fits=lambda spec: not {"frozen-first", "pruned"} & {*spec.tricks},
    ),
    Mutator(
        "cleared-before-step",
        "The gradients are cleared between backward and update, in a share of the updates.",
        "fact",
        (0.5, 0.8, 0.95, 0.99, 1.0),
        ("NoGradient", "UnchangedParameter"),
        (),
        ("grad", "count"),
        plant=_clear,
    ),
    Mutator(
        "not-cleared",
        "The gradients are cleared only before each so many updates, so that earlier ones are still in them.",
        "pattern",
        (2, 4, 10, 40, 1_000_000),
        ("GradientsRepeat",),
        ("GradientsNotCleared",),
        ("grad", "norm"),
        plant=_keep,
        fits=lambda spec: spec.accumulate == 1,
    ),
)
