"""Chooses the loggers that a callback writes to."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from lightning_hooks.callbacks._logger_kinds import kinds_of
from lightning_hooks.callbacks._loggers import LoggerWriter, is_board
from lightning_hooks.callbacks._run import LightningRun
from lightning_hooks.callbacks._trainer import deferred, is_log_step, is_quick
from lightning_hooks.errors import RuleError, did_you_mean

if TYPE_CHECKING:
    from lightning_hooks.callbacks._base import HooksCallback
    from lightning_hooks.callbacks._lightning import Trainer


def as_loggers(loggers: Any) -> tuple[str, ...]:
    """The option `loggers` as a tuple of names.

    Raises:
        RuleError: the option holds something other than names.
    """
    names = (loggers,) if isinstance(loggers, str) else loggers
    if not isinstance(names, Sequence) or isinstance(names, bytes) or not all(isinstance(name, str) and name for name in names):
        raise RuleError(f"loggers must be 'all', 'tensorboard', names of classes of loggers, or an empty list, got {loggers!r}")
    return tuple(names)


def logger_writer(callback: HooksCallback, trainer: Trainer, run: LightningRun, **options: Any) -> LoggerWriter:
    """The consumer that writes to the loggers that a callback chooses; on ranks other than 0 it writes nothing.

    If none of these loggers is a TensorBoard, and a callback of the Trainer has a `logdir`, an event file in that folder is
    added, which all callbacks share.
    """
    chosen: list[Any] = []
    if trainer.is_global_zero:
        chosen = [logger for logger in trainer.loggers if _is_chosen(logger, callback.loggers)]
        logdir = run.logdir_of(callback)
        if logdir is not None and not is_quick(trainer) and not any(map(is_board, chosen)):
            chosen.append(run.own_board(logdir))
        if chosen and not is_quick(trainer):
            _warn_of_unknown(callback.loggers, trainer.loggers)
    options["has_layers"] = partial(has_layers, callback)
    return LoggerWriter(chosen, deferred(trainer, is_log_step, False), callback.prefix, **options)


def has_layers(callback: HooksCallback, logger: Any) -> bool:
    """Whether the user asks for scalars of layers in a logger, or names the logger.

    A logger other than TensorBoard gets scalars of layers only then. A TensorBoard then keeps the scalars of every step when
    tables are written for windows of steps.
    """
    has_asked = bool(getattr(callback, "watch", None) or getattr(callback, "scalars", None))
    has_number = getattr(callback, "max_scalars", None) is not None
    return has_asked or has_number or not kinds_of(logger).isdisjoint(callback.loggers)


def _warn_of_unknown(chosen: Sequence[str], loggers: Sequence[Any]) -> None:
    valid = {"all", "tensorboard"}.union(*map(kinds_of, loggers))
    kinds = [type(logger).__name__ for logger in loggers]
    for name in chosen:
        if name not in valid:
            has = f"it has {', '.join(kinds) or 'none'}"
            warnings.warn(f"loggers: no logger of the Trainer is a {name!r}{did_you_mean(name, kinds, 1)}; {has}", stacklevel=2)


def _is_chosen(logger: Any, chosen: Sequence[str]) -> bool:
    return "all" in chosen or not kinds_of(logger).isdisjoint(chosen) or ("tensorboard" in chosen and is_board(logger))
