"""Raises the recursion limit of the interpreter, because torch needs one more frame for each call of a module with a hook."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Final

from torch import nn

from lightning_hooks.hooks.handles import Handles

_DEEP: Final = 50  # levels of modules; with fewer levels, the frames of hooks fit into the usual recursion limit
_OF_A_HOOK: Final = 50  # frames that the innermost hook needs


class StackRoom:
    """Raises the recursion limit while a deeply nested model has hooks, by the number of frames that the hooks need.

    Args:
        model: the root module.
    """

    _all: Final[list[StackRoom]] = []
    _limit = 0  # the limit that this class has set last
    _given = 0  # the limit that other code has set

    def __init__(self, model: nn.Module) -> None:
        depth = max(name.count(".") for name, _ in model.named_modules()) + 2
        self._frames = depth + _OF_A_HOOK if depth > _DEEP else 0

    def make(self, handles: Handles) -> None:
        """Raise the limit until the handles are closed."""
        if self._frames:
            handles.keep(self)
            self._all.append(self)
            self._set()

    def remove(self) -> None:
        """Lower the limit again."""
        if self in self._all:
            self._all.remove(self)
            self._set()

    @classmethod
    def _set(cls) -> None:
        current = sys.getrecursionlimit()
        # If other code has set the recursion limit since this class did, that limit is the one to raise.
        if current != cls._limit:
            cls._given = current
        # Python raises RecursionError if the new limit is below the current depth of the stack. Then the old limit stays.
        with suppress(RecursionError):
            sys.setrecursionlimit(cls._given + sum(room._frames for room in cls._all))
        cls._limit = sys.getrecursionlimit()
