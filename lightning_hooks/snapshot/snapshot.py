"""Snapshot: restores modules, optimizers and other objects bit for bit, with everything that they hold."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from lightning_hooks.snapshot.contents import contents_of, saved_contents
from lightning_hooks.snapshot.generators import saved_generator
from lightning_hooks.snapshot.reach import Reach
from lightning_hooks.snapshot.tensors import copy_of, saved_tensor

_PLAIN: Final = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type,
    FunctionType,
    BuiltinFunctionType,
    MethodType,
    ModuleType,
)


class Snapshot:
    """The state of some objects and of everything that they hold, as it was when the snapshot was made.

    The snapshot keeps tensors, gradients, the attributes of modules and of other objects, containers, and generators.
    Restoring keeps every object: a parameter stays the same parameter, with the numbers that it had.

    Args:
        roots: modules, optimizers, schedulers, or any other objects.
        reach: what of the objects is kept; by default everything.

    Example:
        >>> layer = nn.Linear(1, 1)
        >>> before, snapshot = layer.weight.item(), Snapshot([layer])
        >>> _ = nn.init.constant_(layer.weight, 7.0)
        >>> layer.calls = 3
        >>> snapshot.restore()
        >>> layer.weight.item() == before, hasattr(layer, "calls")
        (True, False)
    """

    def __init__(self, roots: Iterable[Any], reach: Reach | None = None) -> None:
        self._reach = reach or Reach()
        self._restores: list[Callable[[], object]] = []
        self._known: dict[int, Any] = {}  # by id; holds the objects, so that no id is used again
        self._parameters: list[Tensor] = []
        self._numbers: dict[int, Tensor | None] = {}
        for root in roots:
            # Begin with the innermost modules, so that the depth of a model does not count.
            for module in reversed(list(root.modules())) if isinstance(root, nn.Module) else ():
                self._keep(module)
            self._keep(root)

    def restore(self) -> None:
        """Set everything to its state in the snapshot."""
        with torch.no_grad():
            for restore in self._restores:
                restore()

    def clear_gradients(self) -> None:
        """Take the gradients off all tensors, without writing to them; `restore` puts them back."""
        for tensor in self._parameters:
            tensor.grad = None

    def numbers_of(self, tensor: Tensor) -> Tensor | None:
        """The numbers that a tensor had; None if they are not in the snapshot."""
        return self._numbers.get(id(tensor))

    def _keep(self, root: Any) -> None:
        """Keep an object and what it holds; what is nearest comes first."""
        waiting: deque[tuple[Any, int]] = deque([(root, 0)])
        left = self._reach.values
        while waiting and left > 0:
            value, depth = waiting.popleft()
            if isinstance(value, _PLAIN) or id(value) in self._known or depth > self._reach.depth:
                continue
            self._known[id(value)] = value
            left -= 1
            waiting.extend((each, depth + 1) for each in self._keep_value(value))

    def _keep_value(self, value: Any) -> Iterable[Any]:
        """Keep one value, and return what it holds."""
        if isinstance(value, Tensor):
            return self._keep_tensor(value)
        if isinstance(value, np.ndarray):
            return self._keep_array(value)
        restore = saved_generator(value)
        if restore is not None:
            self._restores.append(restore)
            return ()
        return [*self._keep_contents(value), *self._keep_attributes(value)]

    def _keep_tensor(self, tensor: Tensor) -> Iterable[Any]:
        if self._reach.keeps(tensor):
            numbers = self._numbers[id(tensor)] = copy_of(tensor) if self._reach.copies(tensor) else None
            if tensor.is_leaf and (tensor.requires_grad or tensor.grad is not None):
                self._parameters.append(tensor)
            self._restores.append(saved_tensor(tensor, numbers))
        return ()

    def _keep_array(self, array: np.ndarray[Any, Any]) -> Iterable[Any]:
        if self._reach.keeps(array) and array.flags.writeable and not array.dtype.hasobject:
            self._restores.append(partial(array.__setitem__, ..., array.copy()))
        return ()

    def _keep_contents(self, value: Any) -> Iterable[Any]:
        if isinstance(value, (list, deque)) and len(value) > self._reach.entries:
            return ()
        contents = contents_of(value)
        if contents is None:
            return ()
        self._restores.append(saved_contents(value, contents))
        return contents if len(value) <= self._reach.entries else ()

    def _keep_attributes(self, value: Any) -> Iterable[Any]:
        attributes = getattr(value, "__dict__", None)
        if not isinstance(attributes, dict) or id(attributes) in self._known or not self._reach.opens(value):
            return ()
        self._known[id(attributes)] = attributes
        contents = contents_of(attributes) or []
        self._restores.append(saved_contents(attributes, contents))
        return contents
