"""Counts the hooks that a compiler traces as part of somebody else's function, where the hooks do nothing.

A hook may change nothing in Python while it is traced. A function that is marked as constant may count: the compiler calls it
while it traces, and keeps the result. Marking imports the compiler, so it waits until something else has imported the compiler.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch

number = 0  # how many hooks were traced in this process


def count() -> int:
    """How many hooks were traced in this process; from the first call with a compiler on, they are counted."""
    global note
    if note is _ignore and "torch._dynamo" in sys.modules:
        note = torch.compiler.assume_constant_result(_note)
    return number


def _ignore() -> bool:
    return False


def _note() -> bool:
    global number
    number += 1
    return True


note: Callable[[], bool] = _ignore
"""Called by a hook that is traced."""
