"""Snapshot: restores modules, optimizers and other objects bit for bit, with everything that they hold."""

from __future__ import annotations

import random
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

_DICTS: Final = (dict, OrderedDict, defaultdict, Counter)
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
_NOT_WALKED: Final = (
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
"""Libraries whose objects are not walked: they belong to the run, or to other threads."""
_DEEPEST: Final = 40
_MOST_ENTRIES: Final = 100_000
"""A longer list is a data set, which a training step does not change."""
_FEW_ENTRIES: Final = 1000


class Snapshot:
    """The state of some objects and of everything that they hold, as it was when the snapshot was made.

    It keeps tensors, gradients, the attributes of modules and of other objects, containers, and generators. Restoring keeps
    every object: a parameter stays the same parameter, with the numbers that it had.

    Args:
        roots: modules, optimizers, schedulers, or any other objects.
        has_data: whether the objects hold a data set: its numbers and long lists are then not kept, because only what draws
            from it changes.

    Example:
        >>> layer = nn.Linear(1, 1)
        >>> before, snapshot = layer.weight.item(), Snapshot([layer])
        >>> _ = nn.init.constant_(layer.weight, 7.0)
        >>> layer.calls = 3
        >>> snapshot.restore()
        >>> layer.weight.item() == before, hasattr(layer, "calls")
        (True, False)
    """

    def __init__(self, roots: Iterable[Any], *, has_data: bool = False) -> None:
        self._has_data, self._most_entries = has_data, _FEW_ENTRIES if has_data else _MOST_ENTRIES
        self._undo: list[Callable[[], None]] = []
        self._known: dict[int, Any] = {}  # by id; holds the objects, so that no id is used again
        self._parameters: list[Tensor] = []
        self._numbers: dict[int, Tensor | None] = {}
        for root in roots:
            # Begin with the innermost modules, so that the depth of a model does not count.
            for module in reversed(list(root.modules())) if isinstance(root, nn.Module) else ():
                self._keep(module, 0)
            self._keep(root, 0)

    def restore(self) -> None:
        """Set everything to its state in the snapshot."""
        with torch.no_grad():
            for undo in self._undo:
                undo()

    def clear_gradients(self) -> None:
        """Take the gradients off all tensors, without writing to them; `restore` puts them back."""
        for tensor in self._parameters:
            tensor.grad = None

    def numbers_of(self, tensor: Tensor) -> Tensor | None:
        """The numbers that a tensor had; None if it is not in the snapshot."""
        return self._numbers.get(id(tensor))

    def _keep(self, value: Any, depth: int) -> None:
        if isinstance(value, _PLAIN) or id(value) in self._known or depth > _DEEPEST:
            return
        self._known[id(value)] = value
        if self._has_data and isinstance(value, (Tensor, np.ndarray)):
            return
        if isinstance(value, Tensor):
            self._keep_tensor(value)
        elif type(value) in _DICTS:
            self._keep_dict(value, depth)
        elif isinstance(value, (list, deque)):
            self._keep_list(value, depth)
        elif isinstance(value, set):
            items = set(value)
            self._undo.append(partial(_refill, value, items))
        elif isinstance(value, (tuple, frozenset)):
            for each in value:
                self._keep(each, depth + 1)
        elif isinstance(value, np.ndarray):
            self._keep_array(value)
        elif not self._keep_generator(value):
            self._keep_object(value, depth)

    def _keep_tensor(self, tensor: Tensor) -> None:
        numbers, grad, needs_grad = _cloned(tensor), tensor.grad if tensor.is_leaf else None, tensor.requires_grad
        self._numbers[id(tensor)] = numbers
        if tensor.is_leaf and needs_grad or grad is not None:
            self._parameters.append(tensor)
        data, hooks = tensor.data, getattr(tensor, "_backward_hooks", None)
        own_hooks = None if hooks is None else OrderedDict(hooks)

        def undo() -> None:
            # Assigning `data` brings back memory that code has replaced; writing to it does not count as a change for autograd.
            if _memory(tensor) != _memory(data) or tensor.shape != data.shape or tensor.dtype != data.dtype:
                tensor.data = data
            if numbers is not None:
                tensor.data.copy_(numbers)
            if tensor.is_leaf:
                tensor.requires_grad_(needs_grad)
                tensor.grad = grad
            if hooks is None and tensor._backward_hooks is not None:
                tensor._backward_hooks = None
            elif hooks is not None and own_hooks is not None:
                hooks.clear()
                hooks.update(own_hooks)

        self._undo.append(undo)

    def _keep_dict(self, value: dict[Any, Any], depth: int) -> None:
        items = dict(value)

        def undo() -> None:
            value.clear()
            value.update(items)

        self._undo.append(undo)
        if len(items) <= self._most_entries:
            for each in (*items.keys(), *items.values()):
                self._keep(each, depth + 1)

    def _keep_list(self, value: Any, depth: int) -> None:
        if len(value) > self._most_entries:
            return
        items = list(value)

        def undo() -> None:
            value.clear()
            value.extend(items)

        self._undo.append(undo)
        for each in items:
            self._keep(each, depth + 1)

    def _keep_array(self, array: np.ndarray[Any, Any]) -> None:
        if not array.flags.writeable or array.dtype.hasobject:
            return
        numbers = array.copy()

        def undo() -> None:
            array[...] = numbers

        self._undo.append(undo)

    def _keep_generator(self, value: Any) -> bool:
        state: Any
        if isinstance(value, torch.Generator):
            state = value.get_state()
            self._undo.append(partial(_set_state, value, state))
        elif isinstance(value, np.random.Generator):
            bits = value.bit_generator
            state = bits.state
            self._undo.append(lambda: setattr(bits, "state", state))
        elif isinstance(value, np.random.RandomState):
            state = value.get_state()
            self._undo.append(lambda: value.set_state(state))
        elif isinstance(value, random.Random):
            state = value.getstate()
            self._undo.append(lambda: value.setstate(state))
        else:
            return False
        return True

    def _keep_object(self, value: Any, depth: int) -> None:
        library = type(value).__module__.partition(".")[0]
        is_walked = isinstance(value, nn.Module) or library not in _NOT_WALKED
        attributes = getattr(value, "__dict__", None)
        if not is_walked or not isinstance(attributes, dict):
            return
        items = dict(attributes)

        def undo() -> None:
            attributes.clear()
            attributes.update(items)

        self._undo.append(undo)
        for each in items.values():
            self._keep(each, depth + 1)


def _refill(values: set[Any], items: set[Any]) -> None:
    values.clear()
    values.update(items)


def _set_state(generator: torch.Generator, state: Tensor) -> None:
    generator.set_state(state)


def _cloned(tensor: Tensor) -> Tensor | None:
    """The numbers of a tensor; None if code cannot write to its elements one by one."""
    if tensor.is_meta or any(stride == 0 and size > 1 for stride, size in zip(_strides(tensor), tensor.shape, strict=False)):
        return None
    return tensor.detach().clone()


def _memory(tensor: Tensor) -> int | None:
    return tensor.data_ptr() if tensor.layout == torch.strided and not tensor.is_nested and not tensor.is_meta else None


def _strides(tensor: Tensor) -> tuple[int, ...]:
    return tuple(tensor.stride()) if tensor.layout == torch.strided and not tensor.is_nested else ()
