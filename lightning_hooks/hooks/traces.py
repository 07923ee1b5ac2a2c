"""Counts the hooks that a compiler traces as part of a function that was not recognised as compiled, where they have no effect.

A hook may not change Python state while it is traced. A function that is marked as constant may: the compiler calls it while it
traces, and uses the result as a constant. Marking a function imports the compiler, so `count` marks `note` only after something
else has imported the compiler.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch

number = 0  # of hooks that were traced in this process


def count() -> int:
    """How many hooks were traced in this process. Counting begins with the first call after the compiler was imported."""
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
"""Called by every hook while it is traced."""
