"""What happens to one tensor at one place: its participants in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor

from lightning_hooks.hooks import Visitor
from lightning_hooks.stats.measurement import Measurement


class Looks(Protocol):
    """A part that looks at a tensor."""

    changes: bool

    def look(self, look: Measurement) -> None:
        """Take a measurement in."""

    def see(self, tensor: Tensor) -> None:
        """Take a tensor in that nobody else looks at."""


class Changes(Protocol):
    """A part that may change a tensor."""

    changes: bool

    def change(self, tensor: Tensor) -> Tensor | None:
        """The tensor's replacement, or None."""


Part = Looks | Changes


class SharedVisitor:
    """The visitor of one place: observers share a measurement until somebody changes the tensor.

    Args:
        parts: in the order of the callbacks.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = list(parts)

    @property
    def visitor(self) -> Visitor:
        """What is called with the tensor: the only part itself where nobody shares the tensor with it, else this chain."""
        # Looking alone is what almost every chain does, and how often it is done makes its price.
        first: Any = self.parts[0]
        return first.see if len(self.parts) == 1 and hasattr(type(first), "see") else self

    @property
    def changes(self) -> bool:
        """Whether any part may change the tensor."""
        return any(part.changes for part in self.parts)

    def __call__(self, tensor: Tensor) -> Tensor | None:
        """Show the tensor to every part; return what replaces it, if anything does."""
        measured: Measurement | None = None
        replacement: Tensor | None = None
        for part in self.parts:
            if hasattr(part, "look"):
                if measured is None:
                    measured = Measurement(tensor)
                part.look(measured)
            else:
                changed = part.change(tensor)
                if changed is not None:
                    tensor = replacement = changed
                    measured = None
        return replacement
