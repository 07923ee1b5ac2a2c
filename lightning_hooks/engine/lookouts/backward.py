"""Tells the loss of each `loss.backward()` of a plain loop: no hook shows the graph of a loss before its backward pass."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from threading import get_ident
from typing import Any

import torch
from torch import Tensor

from lightning_hooks.hooks import Handles


class BackwardCalls:
    """Stands around `Tensor.backward` in the thread that has installed it.

    Args:
        called: called with the loss, before its backward pass.
    """

    def __init__(self, called: Callable[[Tensor], None]) -> None:
        self._called: Callable[[Tensor], None] | None = called
        self._thread = get_ident()
        self._before: Any = None
        self._ours: Any = None

    def install(self, handles: Handles) -> None:
        """Put the function in the place of torch's; closing the handles puts torch's back."""
        handles.keep(self)
        before: Callable[..., Any] = Tensor.backward
        self._before = before

        @wraps(before)
        def backward(tensor: Tensor, *args: Any, **kwargs: Any) -> None:
            called = self._called
            if called is not None and get_ident() == self._thread and not torch.compiler.is_compiling():
                called(tensor)
            before(tensor, *args, **kwargs)

        self._ours = backward
        Tensor.backward = self._ours  # type: ignore[method-assign]

    def remove(self) -> None:
        """Put torch's function back, unless somebody has wrapped ours; a second call does nothing."""
        self._called = None
        # If somebody has wrapped our function since, theirs stays and ours passes each call through.
        if self._ours is not None and Tensor.backward is self._ours:
            Tensor.backward = self._before  # type: ignore[method-assign]
        self._ours = None
