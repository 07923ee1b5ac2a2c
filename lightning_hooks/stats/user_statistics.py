"""Statistics that users write: a callable `Tensor -> scalar Tensor` or a `torchmetrics.Metric` class, and their rows."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric

from lightning_hooks.errors import RuleError
from lightning_hooks.rules.calling import check_takes, check_takes_tensor
from lightning_hooks.rules.importing import import_object
from lightning_hooks.tensor_kinds import whole


@dataclass(frozen=True)
class UserStatistic:
    """A statistic that a user wrote.

    The values of a function for several calls, micro-batches and ranks are averaged, weighted by the number of elements: exact
    for anything that is itself a mean. A metric accumulates and merges by its own rules.

    Args:
        name: the word for the tag.
        call: `Tensor -> scalar Tensor`, or a `torchmetrics.Metric` class.
        where: the option that holds it, for messages.
        row: the tensor and its module or parameter, for messages.
    """

    name: str
    call: Callable[[Tensor], Tensor] | type[Metric]
    where: str = ""
    row: str = ""

    @property
    def is_metric(self) -> bool:
        """Whether each row gets a `torchmetrics.Metric` of its own."""
        return inspect.isclass(self.call)

    def __str__(self) -> str:
        return f"{self.where}: statistic {self.name!r}{f' of {self.row}' if self.row else ''}"

    def run(self, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call the user's code; whatever it raises gets a note that says where.

        Raises:
            RuntimeError: it raised StopIteration, which would end the epoch silently.
        """
        try:
            return call(*args, **options)
        except StopIteration as error:
            raise RuntimeError(f"{self} raised StopIteration: {error}") from error
        except Exception as error:
            error.add_note(f"raised in {self}")
            raise

    def scalar(self, value: Any) -> Tensor:
        """What the user's code returned, a real scalar, as a tensor without dimensions."""
        is_number = isinstance(value, (float, int, np.generic, np.ndarray))
        found = torch.as_tensor(value, device="cpu") if is_number else value
        if not isinstance(found, Tensor) or found.is_complex():
            kind = f"a {found.dtype}" if isinstance(found, Tensor) else repr(value)
            raise RuleError(f"{self} returned {kind}; a real scalar is needed")
        if found.numel() != 1:
            raise RuleError(f"{self} returned a tensor of shape {tuple(found.shape)}; a scalar is needed")
        return found.detach().reshape(())


def user_statistic(stat: Any, where: str) -> UserStatistic:
    """Read a user's statistic from a callable, a metric class or the import path of either.

    Raises:
        RuleError: it is none of these, or its name has a slash, which divides the parts of a tag.
    """
    call = import_object(stat, where) if isinstance(stat, str) else stat
    if inspect.isclass(call) and not issubclass(call, Metric):
        raise RuleError(f"{where}: {call.__name__} is a class but not a torchmetrics.Metric; give a function or a Metric class")
    if not callable(call) or isinstance(call, Metric):
        hint = "the class itself, since every row gets a metric of its own" if isinstance(call, Metric) else "a callable"
        raise RuleError(f"{where}: {stat!r} is not a statistic; give {hint}")
    if inspect.isclass(call):
        _check_metric(call, where)
    else:
        check_takes_tensor(call, where)
    name = getattr(call, "__name__", type(call).__name__).strip("<>")
    if "/" in name:
        raise RuleError(
            f"{where}: the statistic {name!r} has a slash in its name, which divides the parts of a tag; set its "
            f"__name__ to another, such as {name.replace('/', '_')!r}"
        )
    return UserStatistic(name=name, call=call, where=where)


def _check_metric(kind: Any, where: str) -> None:
    """Refuse a class of metrics that cannot be made without further arguments, or be updated with one tensor."""
    try:
        inspect.signature(kind).bind(sync_on_compute=True)
    except TypeError as error:
        raise RuleError(
            f"{where}: {kind.__name__} cannot be made with (sync_on_compute=…): {error}; its __init__ must need no other "
            "argument, and pass **kwargs on"
        ) from error
    check_takes(kind.update, f"{where}: {kind.__name__}.update", "self", "tensor")


class UserRows:
    """The rows of a table that keep users' statistics. Metrics are not part of the state that ranks exchange.

    Args:
        replicated: the rows whose whole tensor every rank sees.
    """

    def __init__(
        self, users: Sequence[tuple[int, UserStatistic]], replicated: Iterable[int], device: torch.device | str
    ) -> None:
        self._functions: dict[int, list[tuple[int, UserStatistic]]] = {}
        self._metrics: dict[int, list[tuple[UserStatistic, Metric]]] = {}
        self._replicated = {row for row, _ in users}.intersection(replicated)
        functions = 0
        for row, user in users:
            if user.is_metric:
                metric = user.run(user.call, sync_on_compute=row not in self._replicated).to(device)
                self._metrics.setdefault(row, []).append((user, metric))
            else:
                self._functions.setdefault(row, []).append((functions, user))
                functions += 1
        self.have_metrics = bool(self._metrics)
        self._filled: set[int] = set()

    def __contains__(self, row: int) -> bool:
        return row in self._functions or row in self._metrics

    @property
    def rows(self) -> set[int]:
        return {*self._functions, *self._metrics}

    @property
    def functions(self) -> list[tuple[int, int, str]]:
        """Row, index of the weighted sum, and name of every function."""
        return [(row, index, user.name) for row, kept in self._functions.items() for index, user in kept]

    def sums_of(self, row: int) -> list[int]:
        """The indices of the weighted sums of a row."""
        return [index for index, _ in self._functions.get(row, ())]

    def fill(self, row: int, sums: Tensor, tensor: Tensor, *, merging: bool) -> None:
        """Update the statistics of a row, which an empty tensor does not change.

        All ranks must call this for a sharded tensor, which is gathered before any of them.

        Args:
            sums: weighted sums with their weights, of all functions [functions, 2].
            tensor: what the statistics are computed from; each is given a copy.
            merging: whether functions add to their sums or replace them; metrics always accumulate.

        Raises:
            RuleError: a function did not return a scalar.
        """
        tensor = whole(tensor)
        if not tensor.numel():
            return
        self._filled.add(row)
        # Each gets a copy: training overwrites what a metric may keep, and a statistic may work in place on what it is given.
        for index, user in self._functions.get(row, ()):
            value = user.scalar(user.run(user.call, tensor.clone())).to(sums.device, torch.float64)
            weight = torch.full_like(value, float(tensor.numel()))  # a tensor made from a host number would wait for the device
            pair = torch.stack([value * weight, weight])
            sums[index] = sums[index] + pair if merging else pair
        for user, metric in self._metrics.get(row, ()):
            user.run(metric.update, tensor.clone())

    def reset(self, row: int | None = None) -> None:
        """Reset the metrics of a row, or all of them."""
        if row is None:
            self._filled.clear()
        for kept in self._metrics.values() if row is None else [self._metrics.get(row, [])]:
            for _, metric in kept:
                metric.reset()

    def metric_values(self, counts: Any) -> dict[tuple[int, str], float]:
        """The value of every metric whose row was filled on any rank; metrics synchronise by themselves.

        Args:
            counts: elements of every row, a vector, merged over ranks: all ranks must compute the same metrics.
        """
        filled = [row for row in self._metrics if counts[row] > 0 and (row in self._filled or row not in self._replicated)]
        asked = [(row, user, metric) for row in filled for user, metric in self._metrics[row]]
        return {(row, user.name): float(user.scalar(user.run(_compute, metric))) for row, user, metric in asked}


def _compute(metric: Metric) -> Any:
    """The value over all ranks of a metric that perhaps only another rank has updated.

    If this rank has not updated the metric, `metric.compute` would warn. No filter hides the warning: setting a filter makes
    Python forget which warnings it has shown, and the user's own warnings would be shown again at every step.
    """
    undecorated = getattr(metric.compute, "__wrapped__", None)
    if metric.update_called or undecorated is None:
        return metric.compute()
    with metric.sync_context(dist_sync_fn=metric.dist_sync_fn):
        return undecorated()
