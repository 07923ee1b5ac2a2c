"""Several readers of one tensor as one callable."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from lightning_hooks import backends

Reader = Callable[[Tensor], object]
_compiled = backends.hooks().module


def read_in_order(calls: Sequence[Reader]) -> Reader:
    """One callable that calls readers of the same tensor in order, and ignores their results.

    The C++ class calls compiled writers without the interpreter.

    Example:
        >>> read = read_in_order([print, print])
        >>> read("a tensor")
        a tensor
        a tensor
    """
    if len(calls) == 1:
        return calls[0]
    if _compiled is not None:
        readers: Reader = _compiled.Readers(tuple(calls))
        return readers

    def read(tensor: Tensor) -> None:
        for call in calls:
            call(tensor)

    return read
