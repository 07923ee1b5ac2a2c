"""What ended a run: the exception, and the module in whose method it was raised."""

from __future__ import annotations

import traceback

from torch import nn

from lightning_hooks.recorder.record import Failure

_BACKWARD = ("_engine_run_backward", "run_backward")


def failure_of(error: BaseException, model: nn.Module) -> Failure:
    """The exception as plain values; the innermost frame whose `self` is a module of the model names the module.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 1))
        >>> try:
        ...     model("text")
        ... except TypeError as error:
        ...     failure_of(error, model).module
        '0'
    """
    names = {id(module): name for name, module in model.named_modules()}
    module, direction = "", "forward"
    for frame, _ in traceback.walk_tb(error.__traceback__):
        owner = frame.f_locals.get("self")
        if isinstance(owner, nn.Module) and id(owner) in names:
            module = names[id(owner)]
        if frame.f_code.co_name in _BACKWARD:
            module, direction = "", "backward"
    return Failure(type(error).__name__, str(error), "".join(traceback.format_exception(error)), module, direction)
