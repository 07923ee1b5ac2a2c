"""A user's own statistic: a callable `Tensor -> scalar Tensor`, or a `torchmetrics.Metric` class."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from lightning_hooks.errors import RuleError
from lightning_hooks.rules.importing import import_object


@dataclass(frozen=True)
class UserStatistic:
    """A statistic that is not one of ours.

    A function's values of several calls, micro-batches and ranks are averaged, weighted by the number of elements: exact
    for anything that is itself a mean. A metric accumulates and merges by its own rules.

    Args:
        name: the word for the tag.
        call: `Tensor -> scalar Tensor`, or a `torchmetrics.Metric` class.
    """

    name: str
    call: Callable[[Tensor], Tensor] | type[Metric]

    @property
    def is_metric(self) -> bool:
        """Whether each row gets a `torchmetrics.Metric` of its own."""
        return inspect.isclass(self.call)


def user_statistic(stat: Any, where: str) -> UserStatistic:
    """Read a user's statistic from a callable, a metric class or the import path of either.

    Args:
        stat: what the rule holds.
        where: the option that holds it, for the message.

    Raises:
        RuleError: it is none of these.
    """
    call = import_object(stat, where) if isinstance(stat, str) else stat
    if inspect.isclass(call) and not issubclass(call, Metric):
        raise RuleError(f"{where}: {call.__name__} is a class but no torchmetrics.Metric; give a function or a Metric class")
    if not callable(call) or isinstance(call, Metric):
        hint = "the class itself, since every row gets a metric of its own" if isinstance(call, Metric) else "a callable"
        raise RuleError(f"{where}: {stat!r} is no statistic; give {hint}")
    name = getattr(call, "__name__", type(call).__name__).strip("<>")
    return UserStatistic(name=name, call=call)


def whole(tensor: Tensor) -> Tensor:
    """The full tensor behind a sharded one, for which all ranks must ask together; any other as it is."""
    gather = getattr(tensor, "full_tensor", None)
    full: Tensor = tensor if gather is None else gather()
    return full


def evaluate(statistic: UserStatistic, tensor: Tensor) -> Tensor:
    """One value of a user's function, as a float64 scalar on the tensor's device.

    Raises:
        RuleError: the function did not return a scalar.
    """
    call: Callable[..., Any] = statistic.call
    value = call(whole(tensor))
    value = torch.as_tensor(value, device=tensor.device)
    if value.numel() != 1:
        raise RuleError(f"statistic {statistic.name!r} returned a tensor of shape {tuple(value.shape)}; a scalar is needed")
    return value.detach().reshape(()).double()


def weighted(statistic: UserStatistic, tensor: Tensor) -> Tensor:
    """One value of a user's function times the number of elements, and that number: float64 [2] on the tensor's device.

    Raises:
        RuleError: the function did not return a scalar.
    """
    value = evaluate(statistic, tensor)
    weight = torch.full_like(value, float(tensor.numel()))  # not from a number of the host, which the device would wait for
    return torch.stack([value * weight, weight])
