"""What ended a run: the exception, and the module in whose method it was raised."""

from __future__ import annotations

import inspect
import sys
import traceback
from types import FrameType
from typing import Any

from torch import nn

from lightning_hooks.recorder.record import Failure

_BACKWARD = ("_engine_run_backward", "run_backward")


def failure_of(error: BaseException, model: nn.Module) -> Failure:
    """The exception as plain values; the innermost frame whose `self` is a module of the model names the module, if any does.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 1))
        >>> try:
        ...     model("text")
        ... except TypeError as error:
        ...     failure_of(error, model).module
        '0'
    """
    names = {id(module): name for name, module in model.named_modules()}
    module: str | None = None
    direction = "forward"
    for frame, _ in traceback.walk_tb(error.__traceback__):
        owner = _self_of(frame)
        if isinstance(owner, nn.Module) and id(owner) in names:
            module = names[id(owner)]
        if frame.f_code.co_name in _BACKWARD:
            module, direction = None, "backward"
    return Failure(type(error).__name__, str(error), "".join(traceback.format_exception(error)), module, direction)


def _self_of(frame: FrameType) -> Any:
    """The object whose method a frame runs; None if it runs no method.

    Before Python 3.13 a frame keeps the dictionary that it made of its local variables, and with it the model, as long as the
    exception lives. So the dictionary is emptied; the variables of a function are not in it.
    """
    code = frame.f_code
    if code.co_argcount == 0 or code.co_varnames[0] != "self" or not code.co_flags & inspect.CO_OPTIMIZED:
        return None
    variables = frame.f_locals
    owner = variables.get("self")
    if sys.version_info < (3, 13):
        variables.clear()
    return owner
