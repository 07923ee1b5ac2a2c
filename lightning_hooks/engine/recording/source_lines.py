"""The line of the user's code that runs: the innermost frame outside torch, Lightning and this package."""

from __future__ import annotations

import linecache
import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Final, NamedTuple

import torch

from lightning_hooks.errors import shown_path

_TORCH: Final = str(Path(torch.__file__).parent) + os.sep
_OPTIMIZERS: Final = str(Path(torch.__file__).parent / "optim") + os.sep
_ENGINE: Final = str(Path(torch.__file__).parent / "autograd" / "graph.py")
_CHECKPOINT: Final = str(Path(torch.__file__).parent / "utils" / "checkpoint.py")
_OWN: Final = str(Path(__file__).parents[2]) + os.sep
_LIBRARIES: Final = ("lightning", "pytorch_lightning", "lightning_fabric")
_STANDARD: Final = str(Path(os.__file__).parent) + os.sep


class Line(NamedTuple):
    """One line of source.

    Args:
        file: the path.
        number: of the line, from 1.
        function: the name of the function.
    """

    file: str
    number: int
    function: str

    @property
    def source(self) -> str:
        """As a record names it: `file.py:31 in forward`, relative to the current folder if the file is in it."""
        return f"{shown_path(Path(self.file))}:{self.number} in {self.function}"

    @property
    def text(self) -> str:
        """The text of the line; empty if the file cannot be read."""
        return linecache.getline(self.file, self.number).strip()


class Stack(NamedTuple):
    """What the Python stack says of an operation.

    Args:
        line: the innermost line of the user; None if there is none above the start of the step or of the backward pass.
        in_backward: whether the engine of autograd runs.
        in_optimizer: whether the operation belongs to an optimizer's update, and not to a closure that the optimizer calls.
        makes_root: whether autograd creates the first gradient of a backward pass.
        recomputes: whether activation checkpointing runs a part of the forward pass again.
    """

    line: Line | None
    in_backward: bool
    in_optimizer: bool
    makes_root: bool
    recomputes: bool


def stack_of_operation() -> Stack:
    """Read the Python stack of the operation that a dispatch mode has received."""
    line = None
    in_optimizer = in_closure = makes_root = recomputes = False
    # Assume a backward pass until the frame of `run_step` is found: on a GPU the backward pass runs in a thread of its own,
    # whose stack has neither that frame nor the one of the engine.
    in_backward = True
    for frame in _frames(sys._getframe(1)):
        code = frame.f_code
        file = code.co_filename
        if file.startswith(_OWN):
            if code.co_name == "run_step":
                in_backward = False
                break
            continue
        if file == _ENGINE and code.co_name == "_engine_run_backward":
            # The frames below are those of the caller of `backward()`, which does not run the operation.
            break
        if file.startswith(_TORCH):
            makes_root = makes_root or code.co_name == "_make_grads"
            recomputes = recomputes or file == _CHECKPOINT
            in_optimizer = in_optimizer or (file.startswith(_OPTIMIZERS) and line is None and not in_closure)
            continue
        in_closure = in_closure or _is_lightning(file)
        if line is None and is_user_code(file):
            line = Line(file, frame.f_lineno, code.co_name)
            in_optimizer = in_optimizer or isinstance(frame.f_locals.get("self"), torch.optim.Optimizer)
    return Stack(line, in_backward, in_optimizer and not in_backward, makes_root, recomputes and in_backward)


def user_line() -> Line | None:
    """The innermost line of the user above the start of the step; cheaper than `stack_of_operation`."""
    for frame in _frames(sys._getframe(1)):
        file = frame.f_code.co_filename
        if is_user_code(file):
            return Line(file, frame.f_lineno, frame.f_code.co_name)
        if frame.f_code.co_name in ("run_step", "_engine_run_backward"):
            return None
    return None


def own_line() -> Line | None:
    """The innermost line of the user's own code, which is no installed package; None if a Trainer stands in between."""
    for frame in _frames(sys._getframe(1)):
        file = frame.f_code.co_filename
        if _is_lightning(file) or _is_trainer(file):
            return None
        if f"-packages{os.sep}" not in file and is_user_code(file):
            return Line(file, frame.f_lineno, frame.f_code.co_name)
    return None


@cache
def _is_trainer(file: str) -> bool:
    """Whether a file is that of the Trainer of an installed package, which the user's code only starts."""
    return f"-packages{os.sep}" in file and file.endswith(f"{os.sep}trainer.py")


@cache
def is_user_code(file: str) -> bool:
    """Whether a file is neither torch, Lightning, the standard library, this package nor code without a file."""
    if file.startswith(("<", _TORCH, _OWN)):
        return False
    return not _is_lightning(file) and ("-packages" + os.sep in file or not file.startswith(_STANDARD))


@cache
def _is_lightning(file: str) -> bool:
    return any(f"-packages{os.sep}{library}{os.sep}" in file for library in _LIBRARIES)


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back
