"""Keeps Dynamo out of functions that torch calls by itself, such as hooks.

Where compiled code leaves its graph, Dynamo compiles each Python function that runs there, also one that the backward pass of
an inner gradient calls. A hook of this package would get small graphs of its own, with guards on the state of the package.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from lightning_hooks.private import private

F = TypeVar("F", bound=Callable[..., Any])


def _find() -> Callable[[Any], None]:
    from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy

    # The first action is for a call of the function, the second for the calls that it makes.
    neither = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)
    set_code_exec_strategy((lambda: None).__code__, neither)
    return lambda code: set_code_exec_strategy(code, neither)


_skip: Callable[[Any], None] = private(
    "torch._C._dynamo.eval_frame.set_code_exec_strategy, _FrameExecStrategy, _FrameAction",
    _find,
    lambda code: None,
    "where compiled code leaves its graph, hooks get small graphs of their own",
)


def untraced(function: F) -> F:
    """Keep Dynamo from compiling a call of a function, and calls inside it, as code of their own.

    A function that Dynamo meets while it traces another one is traced with it all the same.
    """
    _skip(function.__code__)
    return function
