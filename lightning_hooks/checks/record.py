"""What one step of a training did, as far as probes measured it: losses, calls of modules, gradients, moves, random draws."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from torch import Tensor, nn

from lightning_hooks.checks.errors import UnmeasuredError
from lightning_hooks.checks.losses import LossCall


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


@dataclass(frozen=True)
class Dropout:
    """One call of a dropout that dropped something.

    Args:
        row: the module that called it.
        rate: the share of elements that it drops, together with dropouts before it with no layer between them.
        kept: the share that it and the dropouts before it on its path keep.
        count: of the dropouts on the path.
        is_of_input: whether no trained layer stands in front of it.
        is_joined: whether `rate` is that of several dropouts.
    """

    row: str
    rate: float
    kept: float
    count: int
    is_of_input: bool
    is_joined: bool = False


class Record:
    """The record of one step of a training, from which the checks read what the step did.

    It has the fields whose probes ran; reading another raises `UnmeasuredError`.

    Attributes:
        losses: the numbers of which a backward began, in order.
        loss_calls: the calls of loss functions of torch.
        calls: the calls of modules that no other module called.
        layers: the numbers of modules without children, in the order of execution.
        called: the names of the modules that were called.
        traced: the names of the modules of which an output had a graph.
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
        dropouts: the calls of dropouts that dropped something.
    """

    losses: list[float]
    loss_calls: list[LossCall]
    calls: list[Call]
    layers: list[Layer]
    called: set[str]
    traced: set[str]
    grads: dict[str, float]
    moved: dict[str, float]
    optimizer_moved: set[str]
    stepped: set[int]
    draws: list[tuple[str, str, bool]]
    read: set[str]
    sources: dict[str, str]
    input_grads: dict[str, Tensor | None]
    hidden: list[str]
    broadcasts: list[str]
    dropouts: list[Dropout]

    def __init__(self) -> None:
        self._failures: dict[str, Exception] = {}

    def fail(self, field: str, error: Exception) -> None:
        """Note that a field could not be measured; whoever reads it gets the error."""
        vars(self).pop(field, None)
        self._failures[field] = error

    def __getattr__(self, name: str) -> NoReturn:
        if name in vars(self).get("_failures", ()):
            raise self._failures[name]
        if name in Record.__annotations__:
            raise UnmeasuredError(name)
        raise AttributeError(f"a record of a step has no {name!r}")
