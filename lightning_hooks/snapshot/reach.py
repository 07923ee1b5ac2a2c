"""Reach: which of the objects that a model holds a snapshot keeps."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from functools import cache
from types import FunctionType
from typing import Any, Final

import numpy as np
from torch import Tensor, nn

CLOSED: Final = (
    "lightning",
    "pytorch_lightning",
    "lightning_fabric",
    "threading",
    "multiprocessing",
    "logging",
    "queue",
    "weakref",
    "_io",
    "io",
    "asyncio",
    "tensorboard",
    "wandb",
    "concurrent",
)
"""Libraries whose objects are not opened: they belong to the run, or to other threads."""
_STANDARD: Final = os.path.dirname(os.__file__) + os.sep
_LIBRARIES: Final = ("torch", "numpy", "lightning_hooks")


class Reach:
    """Everything: tensors, arrays, generators, containers, and attributes of objects of every class that is not closed.

    Args:
        closed: the libraries whose objects are not opened.

    Attributes:
        depth: how far a value may be from the object that holds it.
        values: how many values are kept for each module, and for each other object that the snapshot is made of.
        entries: the most entries of a list or a dictionary whose entries are kept.

    Example:
        >>> Reach().opens(nn.Linear(1, 1)), Reach(closed=["torch"]).opens(np.random)
        (True, True)
    """

    depth: float = 40
    values: float = math.inf
    entries: float = 100_000  # A longer list is a data set, which a training step does not change.

    def __init__(self, closed: Sequence[str] = CLOSED) -> None:
        self._closed = closed

    def opens(self, value: Any) -> bool:
        """Whether the attributes of an object are kept."""
        return isinstance(value, nn.Module) or not self.is_closed(value)

    def is_closed(self, value: Any) -> bool:
        """Whether the library of an object belongs to the run."""
        return type(value).__module__.partition(".")[0] in self._closed

    def opens_code(self, code: type | FunctionType) -> bool:
        """Whether the attributes of a class, or the defaults and the closure of a function, are kept."""
        name = getattr(code, "__module__", None) or ""
        return name.partition(".")[0] not in (*self._closed, *_LIBRARIES) and not _is_standard(name)

    def keeps(self, value: Tensor | np.ndarray[Any, Any]) -> bool:
        """Whether anything of a tensor or an array is kept."""
        return True

    def copies(self, tensor: Tensor) -> bool:
        """Whether the elements of a tensor are kept, beside its gradient."""
        return True


class ReachOfData(Reach):
    """The reach for objects that hold a data set: no numbers and no long lists, because only what draws from it changes."""

    entries = 1000

    def keeps(self, value: Tensor | np.ndarray[Any, Any]) -> bool:
        """No tensor, no array."""
        return False


@cache
def _is_standard(module: str) -> bool:
    """Whether a module belongs to Python itself."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:
        return module != "__main__"
    return file.startswith(_STANDARD) and "-packages" not in file
