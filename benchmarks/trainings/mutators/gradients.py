"""Faults of gradients: cut, cleared too early, not cleared, noisy, late, turned."""

from __future__ import annotations

import math
from collections import deque
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.trainings.layers import hidden_layers
from benchmarks.trainings.mutators.mutator import Mutator, Planted, after, is_usual
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

    after(module, "on_before_optimizer_step", clear)
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


def _disturb(case: Case, spec: Spec, factor: float) -> Planted:
    """Add noise whose root mean square is a multiple of that of the gradient."""
    module, source = case.module, spec.source("noise of gradients")

    def disturb(*args: Any) -> None:
        for parameter in module.parameters():
            if parameter.grad is not None and not parameter.grad.is_sparse:
                size = factor * parameter.grad.square().mean().sqrt()
                parameter.grad += size * torch.randn(parameter.shape, generator=source).to(parameter.grad)

    after(module, "on_before_optimizer_step", disturb)
    return Planted(case)


def _delay(case: Case, spec: Spec, steps: float) -> Planted:
    """Take the gradients of some updates ago."""
    module, kept = case.module, deque[list[Tensor | None]](maxlen=int(steps) + 1)

    def delay(*args: Any) -> None:
        parameters = [*module.parameters()]
        kept.append([None if each.grad is None else each.grad.clone() for each in parameters])
        for parameter, grad in zip(parameters, kept[0], strict=True):
            parameter.grad = None if grad is None else grad.clone()

    after(module, "on_before_optimizer_step", delay)
    return Planted(case)


def _climb(case: Case, spec: Spec, share: float) -> Planted:
    """Turn the gradients of a share of the hidden layers, the first ones."""
    layers = hidden_layers(case.module)
    chosen = layers[: max(1, math.ceil(share * len(layers)))]

    def turn(*args: Any) -> None:
        for _, layer in chosen:
            for parameter in layer.parameters():
                if parameter.grad is not None:
                    parameter.grad = -parameter.grad

    after(case.module, "on_before_optimizer_step", turn)
    return Planted(case, tuple(f"{name}*" for name, _ in chosen))


MUTATORS = (
    Mutator(
        "cut-by-detach",
        "The outputs of a share of the hidden layers, the first ones, are detached from the graph.",
        (0.01, 0.3, 0.5, 0.7, 1.0),
        plant=_detach,
        fits=lambda spec: is_usual(spec) and not {"frozen-first", "pruned"} & {*spec.tricks},
    ),
    Mutator(
        "cleared-before-step",
        "The gradients are cleared between backward and update, in a share of the updates.",
        (0.5, 0.8, 0.95, 0.99, 1.0),
        plant=_clear,
        fits=is_usual,
    ),
    Mutator(
        "not-cleared",
        "The gradients are cleared only before each so many updates, so that earlier ones are still in them.",
        (2, 4, 10, 40, 1_000_000),
        plant=_keep,
        fits=lambda spec: spec.accumulate == 1 and is_usual(spec),
    ),
    Mutator(
        "gradients-noisy",
        "Noise is added to each gradient before the update, whose size is a multiple of that of the gradient.",
        (3, 10, 30, 100, 1000),
        plant=_disturb,
        fits=is_usual,
    ),
    Mutator(
        "gradients-late",
        "Each update takes the gradients of some updates ago.",
        (3, 10, 20, 40, 80),
        plant=_delay,
        fits=is_usual,
    ),
    Mutator(
        "gradients-turned",
        "The gradients of a share of the hidden layers, the first ones, have the wrong sign.",
        (0.01, 0.3, 0.5, 0.7, 1.0),
        plant=_climb,
        fits=lambda spec: is_usual(spec) and "frozen-first" not in spec.tricks,
    ),
)
