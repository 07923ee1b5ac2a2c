"""Several readers of one tensor as one callable. The C++ class calls compiled writers without the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from lightning_hooks import backends

Reader = Callable[[Tensor], object]


class PythonReaders:
    """Calls readers in order and ignores their results.

    Example:
        >>> read = PythonReaders((print, print))
        >>> read("a tensor")
        a tensor
        a tensor
    """

    __slots__ = ("calls",)

    def __init__(self, calls: tuple[Reader, ...], /) -> None:
        self.calls = calls

    def __call__(self, tensor: Tensor, /) -> None:
        for call in self.calls:
            call(tensor)


_compiled = backends.hooks().module
if TYPE_CHECKING or _compiled is None:
    Readers = PythonReaders
else:
    Readers = _compiled.Readers


def read_in_order(calls: Sequence[Reader]) -> Reader:
    """One callable for readers of the same tensor."""
    return calls[0] if len(calls) == 1 else Readers(tuple(calls))
