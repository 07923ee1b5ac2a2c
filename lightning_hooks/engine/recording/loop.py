"""What a flight asks of the loop that trains: a Trainer, or a loop of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.optim import Optimizer


class Loop(NamedTuple):
    """A loop that trains.

    Args:
        model: the root module.
        optimizers: the optimizers, which may change.
        context: learning rates, precision, versions: values of JSON by name.
        step: returns a function that runs the batch under way again, forward and backward; None if nobody can.
        refuses: why no step can be run again; empty if it can.
        quiet: surrounds such a run: nothing else takes part in it.
        scaler: the loss scaler; None without one.
        is_manual: whether the step itself calls the optimizers, so that the calls before can be left out when it runs again.
        rank: the process.
        world_size: the number of processes.
    """

    model: nn.Module
    optimizers: Callable[[], Sequence[Optimizer]]
    context: Callable[[], Mapping[str, Any]] = dict
    step: Callable[[], Callable[[], Tensor | None] | None] = lambda: None
    refuses: Callable[[], str] = lambda: ""
    quiet: Callable[[], AbstractContextManager[None]] = nullcontext
    scaler: Callable[[], Any] = lambda: None
    is_manual: bool = False
    rank: int = 0
    world_size: int = 1

    def type_of(self, name: str) -> str:
        """The class of a module; empty if there is no such module."""
        module = dict(self.model.named_modules()).get(name)
        return "" if module is None else type(module).__name__

    def type_of_owner(self, parameter: str) -> str:
        """The class of the module that holds a parameter."""
        return self.type_of(parameter.rpartition(".")[0])
