"""`instrument`: watch and change a model in a plain PyTorch loop or in a notebook, with the callbacks of a Trainer."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from torch import nn
from torch.optim import Optimizer

from lightning_hooks.callbacks._default_folder import LOGS
from lightning_hooks.engine.plain_loop.part import InLoop
from lightning_hooks.engine.plain_loop.session import Instrument

if TYPE_CHECKING:
    from lightning_hooks.callbacks._base import HooksCallback


def default_callbacks() -> list[HooksCallback]:
    """The callbacks of a loop that names none."""
    from lightning_hooks.callbacks.health import HealthMonitor
    from lightning_hooks.callbacks.monitor import StatsMonitor

    return [StatsMonitor(), HealthMonitor()]


def instrument(
    model: nn.Module,
    callbacks: InLoop | Sequence[InLoop] | None = None,
    *,
    optimizer: Optimizer | Iterable[Optimizer] | None = None,
    calls: str = "training",
    first_step: int = 0,
    folder: str | os.PathLike[str] | None = None,
    logdir: str | os.PathLike[str] | None = None,
) -> Instrument:
    """Watch and change a model in a plain PyTorch loop, with the callbacks that a Trainer takes; it needs no Lightning.

    The result is a context manager, which removes the hooks on exit. With an optimizer, a step ends when the optimizer has
    stepped, including gradient accumulation; with several optimizers, when each has stepped. Without an optimizer, `step()`
    ends a step, only transforms with `when="backward"` are allowed, and `final_grad`, `update` and `state` are refused. A
    forward pass without gradients while the model is in evaluation mode, such as a validation, is not a part of a step; see
    `calls`. With several processes (`torch.distributed`), every process must use `instrument` with the same callbacks if
    tensors are watched or transforms draw random numbers, because tables are merged and seeds shared over all processes.

    The callbacks have the options and the results that they have in a Trainer, and act in the order of the list. What a loop
    cannot serve is refused: other `stages` than training, `loggers` other than the event file, `check_first_batch`, and the
    action `checkpoint`.

    Args:
        model: the root module; of what Fabric, accelerate or `DistributedDataParallel` returned, the module inside.
        callbacks: callbacks of this package, in order. Default: `[StatsMonitor(), HealthMonitor()]`.
        optimizer: one optimizer, several, or None (default); of what Fabric or accelerate returned, the optimizer inside.
        calls: which calls of modules belong to a step: `training` (default), those with gradients enabled or while `model` is
            in training mode; `gradients`, only those with gradients enabled, for loops that collect data without gradients in
            training mode; `all`, for measuring without training. A call that does not belong to a step is neither measured
            nor changed, and custom hooks are not called.
        first_step: the number of the first step, for a loop that resumes; default 0.
        folder: the folder on this machine where callbacks write files, such as findings and flight records; consumers get it
            as `run.folder`. Default: that of the event file, or none, and nothing is written.
        logdir: a folder of this machine for an event file, in a new folder `run_<n>`, for callbacks without a `logdir` of
            their own: for the page (`lightning-hooks view`) and TensorBoard. Default: none with a list of callbacks, and
            `lightning_hooks_logs` in the current folder without one and without `folder`.

    Raises:
        RuleError: an invalid rule or argument, such as an optimizer that holds no parameter of the model, before any hook is
            registered; or the block is entered a second time.
        UnsupportedError: the optimizer does not support hooks around its step.

    Example:
        >>> import torch
        >>> from lightning_hooks import StatsMonitor, Watch
        >>> model = nn.Linear(2, 1, bias=False)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> monitor = StatsMonitor([Watch(params="*", tensors=["grad", "update"], stats="norm")])
        >>> with instrument(model, [monitor], optimizer=optimizer):
        ...     for _ in range(2):
        ...         optimizer.zero_grad()
        ...         model(torch.tensor([[3.0, 4.0]])).sum().backward()
        ...         optimizer.step()
        >>> round(monitor.latest["grad_norm/weight"], 3)
        5.0
        >>> model = nn.Sequential(nn.Linear(2, 1))
        >>> with instrument(model, StatsMonitor([Watch(modules="0", tensors="output", stats="mean")])) as watched:
        ...     model(torch.zeros(1, 2)).sum().backward()
        ...     watched.step()
        >>> watched.latest["output_mean/0"] == model[0].bias.item()
        True
    """
    if callbacks is None and folder is None and logdir is None:
        logdir = LOGS
    given = default_callbacks() if callbacks is None else callbacks
    return Instrument(model, given, optimizer=optimizer, calls=calls, first_step=first_step, folder=folder, logdir=logdir)
