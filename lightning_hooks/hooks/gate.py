"""Whether hooks look at what passes: open during watched batches only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hooks import backends

if TYPE_CHECKING:
    from lightning_hooks.backends._native import Flag
else:
    Flag = getattr(backends.hooks().module, "Flag", object)


class Gate(Flag):
    """Flags that every hook of one model shares.

    `open`: closed during the sanity check, in stages that nobody watches and between batches, and then a hook returns at once.
    Compiled hooks read it without the interpreter.
    `traced`: the same for hooks inside compiled code, and whether anything happens there in this step; the compiler has one
    variant of a graph for each value.
    """

    def __init__(self) -> None:
        self.open = False
        self.traced = False

    def __reduce__(self) -> tuple[type[Gate], tuple[()]]:
        """A copy is closed, and nobody's."""
        return (Gate, ())

    def shut(self) -> None:
        """Close it for both."""
        self.open = self.traced = False
