"""What one step of a training did: losses, calls of modules, gradients, moves and random draws."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from lightning_hooks.checks.batch import kind_of
from lightning_hooks.checks.losses import LossCall
from lightning_hooks.checks.noise import Noise
from lightning_hooks.engine.participants.facts import role_of
from lightning_hooks.nested.tensors import tensors_in


@dataclass(frozen=True)
class Call:
    """A call of a module that no other module called.

    Args:
        name: of the module; `the model` for the root.
        module: the module.
        args: copies of its arguments.
        kwargs: copies of its arguments by name.
        output: what it returned.
    """

    name: str
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    output: Any


@dataclass(frozen=True)
class Layer:
    """The numbers of one call of a module without children.

    Args:
        name: of the module.
        role: of its class, as of `ModuleFacts`.
        input_mean: of its first float input; NaN without one.
        input_std: likewise.
        input_rms: likewise, the root mean square.
        output_rms: the root mean square of its output.
        output_max: the largest magnitude.
        is_finite: whether no element of the output is NaN or infinite.
        input_is_finite: whether no element of its inputs is.
    """

    name: str
    role: str
    input_mean: float
    input_std: float
    input_rms: float
    output_rms: float
    output_max: float
    is_finite: bool
    input_is_finite: bool


@dataclass
class Record:
    """The record of one step of a training, from which the checks read what the step did.

    Args:
        losses: the numbers of which a backward began, in order.
        loss_calls: the calls of loss functions of torch.
        calls: the calls of modules that no other module called.
        layers: the numbers of modules without children, in the order of execution; only if asked for.
        called: the names of the modules that were called.
        grads: the largest magnitude of the gradient of each parameter that had one, by name.
        moved: the largest change of each parameter, by name.
        optimizer_moved: the names of the frozen parameters that an optimizer changed.
        stepped: the optimizers that took a step, by number.
        draws: (function, module, whether the module was in training) of each function that drew random numbers.
        read: the paths of the tensors of the batch that a function or a module read.
        sources: for each norm, the module whose output is its input.
        input_grads: the gradients of the float tensors of the batch, by path.
        hidden: the names of modules in plain lists of which a parameter got a gradient.
        broadcasts: the differences of an output and a tensor of the batch that have a number for each pair of samples.
    """

    losses: list[float] = field(default_factory=list)
    loss_calls: list[LossCall] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    layers: list[Layer] = field(default_factory=list)
    called: set[str] = field(default_factory=set)
    grads: dict[str, float] = field(default_factory=dict)
    moved: dict[str, float] = field(default_factory=dict)
    optimizer_moved: set[str] = field(default_factory=set)
    stepped: set[int] = field(default_factory=set)
    draws: list[tuple[str, str, bool]] = field(default_factory=list)
    read: set[str] = field(default_factory=set)
    sources: dict[str, str] = field(default_factory=dict)
    input_grads: dict[str, Tensor | None] = field(default_factory=dict)
    hidden: list[str] = field(default_factory=list)
    broadcasts: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Listeners:
    """Functions and options with which one check measures more of a step than its record.

    Args:
        with_numbers: whether to measure the inputs and outputs of modules, which waits for the device.
        on_output: called with the name and each tensor with a graph that an outermost module returns or a loss function reads;
            of the latter the name is empty.
        every_output: whether `on_output` is called for modules within modules too.
        on_embedding: called with the indices and the vectors of each embedding.
        on_backward: called after each backward.
        noise: told of every function.
    """

    with_numbers: bool = False
    on_output: Callable[[str, Tensor], None] | None = None
    every_output: bool = False
    on_embedding: Callable[[Tensor, Tensor], None] | None = None
    on_backward: Callable[[], None] | None = None
    noise: Noise | None = None


Numbers = tuple[float, float, float, bool]
"""Mean, standard deviation and root mean square of a tensor, and whether it and its neighbours are finite."""


def numbers_of(values: Any) -> Numbers | None:
    """The numbers of the first float tensor of nested containers; None if there is none."""
    floats = _floats(values)
    if not floats:
        return None
    first = floats[0].float()
    std = float(first.std(correction=0))
    return float(first.mean()), std, float(first.square().mean().sqrt()), _are_finite(floats)


def layer_of(name: str, module: nn.Module, before: Numbers | None, output: Any) -> Layer | None:
    """The numbers of a call; None if its output holds no float tensor."""
    floats = _floats(output)
    if not floats:
        return None
    mean, std, rms, was_finite = before if before is not None else (float("nan"),) * 3 + (True,)
    first = floats[0].float()
    size, largest = float(first.square().mean().sqrt()), float(first.abs().max())
    return Layer(name, role_of(module), mean, std, rms, size, largest, _are_finite(floats), was_finite)


def _floats(values: Any) -> list[Tensor]:
    floats = [tensor.detach() for tensor in tensors_in(values) if tensor.is_floating_point() and not kind_of(tensor)]
    return [tensor for tensor in floats if tensor.numel()]


def _are_finite(tensors: list[Tensor]) -> bool:
    return all(bool(torch.isfinite(each).all()) for each in tensors)
