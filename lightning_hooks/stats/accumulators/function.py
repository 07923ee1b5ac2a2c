"""The accumulator of a function that a user wrote: its mean over calls, micro-batches and ranks, weighted by elements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_hooks.stats.accumulators.base import Accumulator
from lightning_hooks.stats.columns import Column
from lightning_hooks.stats.measurement import Measurement
from lightning_hooks.stats.row_states import RowStates
from lightning_hooks.stats.statistics import mean_of_function
from lightning_hooks.stats.stored import function_names
from lightning_hooks.stats.user_statistics import UserStatistic
from lightning_hooks.tensor_kinds import whole

_COLUMNS: Final = (Column("weighted", merge="sum"), Column("weight", merge="sum"))


class FunctionMean(Accumulator):
    """The mean of a function's values, weighted by the number of elements. It is exact for a function that is itself a mean.

    Args:
        name: the name of the statistic.
        user: the function; None in step views, which do not measure.

    Example:
        >>> mean = FunctionMean("mean_abs", UserStatistic("mean_abs", lambda tensor: tensor.abs().mean()))
        >>> mean.measure(Measurement(torch.tensor([1.0, -3.0])), "output of layer").tolist()
        [4.0, 2.0]
    """

    columns: Sequence[Column] = _COLUMNS
    divided_first = True

    def __init__(self, name: str, user: UserStatistic | None = None) -> None:
        self.name = key_of(name)
        self.statistics = (name,)
        self.stored = function_names(name)
        self._user = user

    def measure(self, measurement: Measurement, row: str) -> Tensor:
        """See `Accumulator`. For a sharded tensor, which is gathered, all ranks must call this method.

        Raises:
            RuleError: the function did not return a scalar.
        """
        assert self._user is not None
        tensor = whole(measurement.tensor)
        if not tensor.numel():
            return self.neutral(tensor.device)
        user = replace(self._user, row=row)
        # Pass a copy: the function may write to its argument in place, or keep a tensor that training overwrites.
        value = user.scalar(user.run(user.call, tensor.clone())).to(tensor.device, torch.float64)
        # `torch.tensor(number, device=…)` would copy a number from the host and wait for the device.
        weight = torch.full_like(value, float(tensor.numel()))
        return torch.stack([value * weight, weight])

    def compute(self, stat: str, states: RowStates) -> NDArray[np.float64]:
        """See `Accumulator`."""
        return mean_of_function(states[self.name])

    def is_measured(self, stat: str, states: RowStates, values: NDArray[np.float64]) -> NDArray[np.bool_]:
        """See `Accumulator`."""
        measured: NDArray[np.bool_] = states[self.name][:, 1] > 0
        return measured

    def for_views(self) -> FunctionMean:
        """See `Accumulator`: the same columns without the function, which may refer to the model."""
        return FunctionMean(self.statistics[0])


def key_of(name: str) -> str:
    """The key of a function's numbers. The prefix distinguishes a function from an accumulator of the same name."""
    return f"function {name}"
