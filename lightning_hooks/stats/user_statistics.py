"""Statistics that users write: a callable `Tensor -> scalar Tensor` or a `torchmetrics.Metric` class."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric

from lightning_hooks.errors import RuleError
from lightning_hooks.rules.calling import check_takes, check_takes_tensor
from lightning_hooks.rules.importing import import_object


@dataclass(frozen=True)
class UserStatistic:
    """A statistic that a user wrote.

    The values of a function for several calls, micro-batches and ranks are averaged, weighted by the number of elements. The
    average is exact if the function is itself a mean. A metric accumulates and merges by its own rules.

    Args:
        name: the name of the statistic in tags.
        call: `Tensor -> scalar Tensor`, or a `torchmetrics.Metric` class.
        where: the option of the rule that names the statistic, for messages.
        row: the tensor and its module or parameter, for messages.

    Example:
        >>> statistic = user_statistic(torch.mean, "Watch: stats")
        >>> statistic.name, statistic.is_metric, str(statistic)
        ('mean', False, "Watch: stats: statistic 'mean'")
    """

    name: str
    call: Callable[[Tensor], Tensor] | type[Metric]
    where: str = ""
    row: str = ""

    @property
    def is_metric(self) -> bool:
        """Whether `call` is a metric class, of which each row gets an object."""
        return inspect.isclass(self.call)

    def __str__(self) -> str:
        return f"{self.where}: statistic {self.name!r}{f' of {self.row}' if self.row else ''}"

    def run(self, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call the user's code. An exception gets a note with the rule, the statistic and the row.

        Raises:
            RuntimeError: the code raised StopIteration, which would end the epoch silently.
        """
        try:
            return call(*args, **options)
        except StopIteration as error:
            raise RuntimeError(f"{self} raised StopIteration: {error}") from error
        except Exception as error:
            error.add_note(f"raised in {self}")
            raise

    def scalar(self, value: Any) -> Tensor:
        """The return value of the user's code as a tensor without dimensions.

        Raises:
            RuleError: the value is not a real scalar.
        """
        is_number = isinstance(value, (float, int, np.generic, np.ndarray))
        result = torch.as_tensor(value, device="cpu") if is_number else value
        if not isinstance(result, Tensor) or result.is_complex():
            kind = f"a {result.dtype}" if isinstance(result, Tensor) else repr(value)
            raise RuleError(f"{self} returned {kind}; a real scalar is needed")
        if result.numel() != 1:
            raise RuleError(f"{self} returned a tensor of shape {tuple(result.shape)}; a scalar is needed")
        return result.detach().reshape(())


def user_statistic(stat: Any, where: str) -> UserStatistic:
    """The statistic of a user.

    Args:
        stat: a callable, a metric class, or the import path of either.
        where: the option of the rule that names the statistic, for messages.

    Raises:
        RuleError: `stat` is none of these, cannot be called with one tensor, or has a name with a slash, which separates the
            parts of a tag.
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
    """Raise if a metric class cannot be constructed without further arguments, or updated with one tensor."""
    try:
        inspect.signature(kind).bind(sync_on_compute=True)
    except TypeError as error:
        raise RuleError(
            f"{where}: {kind.__name__} cannot be made with (sync_on_compute=…): {error}; its __init__ must need no other "
            "argument, and pass **kwargs on"
        ) from error
    check_takes(kind.update, f"{where}: {kind.__name__}.update", "self", "tensor")
