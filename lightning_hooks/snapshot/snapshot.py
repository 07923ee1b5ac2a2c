"""Snapshot: restores modules, optimizers and other objects bit for bit, with everything that they hold."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from types import FunctionType, ModuleType
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from lightning_hooks.snapshot.generators import saved_generator
from lightning_hooks.snapshot.holdings import (
    Holding,
    holding_of_attributes,
    holding_of_class,
    holding_of_container,
    holding_of_function,
    holding_of_slots,
    other_holdings,
)
from lightning_hooks.snapshot.in_place import saved_in_place
from lightning_hooks.snapshot.lending import Lender, Untouchable, lender_of
from lightning_hooks.snapshot.reach import Reach
from lightning_hooks.snapshot.tensors import copy_of, saved_tensor

_PLAIN: Final = (type(None), bool, int, float, complex, str, bytes, ModuleType, Untouchable)


class _Trace(NamedTuple):
    """How the walk came to a value: from the value before, as the object at a position of a holding, or by a name."""

    before: _Trace | None
    holding: Holding | None = None
    position: int = 0
    name: str = ""

    @property
    def shown(self) -> str:
        """The path as code writes it, such as `model.held[0]`."""
        names, trace = [], self
        while trace.before is not None and trace.holding is not None and not trace.name:
            names.append(trace.holding.name_of(trace.position))
            trace = trace.before
        return trace.name + "".join(reversed(names))


class _Held(NamedTuple):
    """The holding of a value, and how the walk came to the value."""

    value: Any
    holding: Holding
    trace: _Trace


class Snapshot:
    """The state of some objects and of everything that they hold, as it was when the snapshot was made.

    The snapshot keeps tensors, gradients, the attributes of modules, of other objects and of their classes, containers, the
    defaults and closures of functions, buffers, and generators of random numbers. Restoring keeps every object: a parameter
    stays the same parameter, with the numbers that it had. What cannot be restored, such as an iterator, is left untouched:
    between `lend` and `restore` a copy or an `Untouchable` is in its place.

    Args:
        roots: modules, optimizers, schedulers, or any other objects.
        reach: what of the objects is kept; by default everything.

    Attributes:
        unrestorable: the names of objects that can neither be restored nor be lent.

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
        self._held: list[_Held] = []
        self._lenders: dict[int, tuple[Lender, _Trace]] = {}
        for root in roots:
            is_module = isinstance(root, nn.Module)
            name = "model" if is_module else getattr(root, "__qualname__", type(root).__name__)
            # Begin with the innermost modules, so that the depth of a model does not count.
            for path, module in reversed(list(root.named_modules())) if is_module else ():
                self._keep(module, f"model.{path}" if path else "model")
            self._keep(root, name)
        self._rebuilt, self._lending, self.unrestorable = self._find_lending()

    def restore(self) -> None:
        """Set everything to its state in the snapshot.

        Raises:
            Exception: something could not be restored; all else is.
        """
        failure: Exception | None = None
        with torch.no_grad():
            for restore in self._restores:
                try:
                    restore()
                except Exception as error:
                    failure = failure or error
        if failure is not None:
            raise failure

    def lend(self) -> None:
        """Put a copy or an `Untouchable` into the place of each object that cannot be restored."""
        lent: dict[int, Any] = {}

        def lend(value: Any) -> Any:
            if id(value) in lent:
                return lent[id(value)]
            if id(value) in self._lenders:
                lender, trace = self._lenders[id(value)]
                made = lender.lent(_named(value, trace), lend)
            elif id(value) in self._rebuilt:
                made = self._rebuild(self._rebuilt[id(value)], lend)
            else:
                return value
            lent[id(value)] = made
            return made

        for held in self._lending:
            held.holding.put([lend(each) for each in held.holding.contents])  # type: ignore[misc]

    def _rebuild(self, held: _Held, lend: Callable[[Any], Any]) -> Any:
        contents = [lend(each) for each in held.holding.contents]
        # Calling a bound method would touch its object, so a method of an `Untouchable` becomes one too.
        untouchable = any(isinstance(each, Untouchable) for each in contents) and callable(held.value)
        return Untouchable(_named(held.value, held.trace)) if untouchable else held.holding.rebuild(contents)  # type: ignore[misc]

    def clear_gradients(self) -> None:
        """Take the gradients off all tensors, without writing to them; `restore` puts them back."""
        for tensor in self._parameters:
            tensor.grad = None

    def numbers_of(self, tensor: Tensor) -> Tensor | None:
        """The numbers that a tensor had; None if they are not in the snapshot."""
        return self._numbers.get(id(tensor))

    def _find_lending(self) -> tuple[dict[int, _Held], list[_Held], list[str]]:
        """The values that are made again around what is lent, the holdings that get it, and what cannot be lent."""
        rebuilt: dict[int, _Held] = {}
        if not self._lenders:
            return rebuilt, [], []
        # The walk has met what is inside of a value after the value itself.
        for held in reversed(self._held):
            if (
                held.holding.put is None
                and held.holding.rebuild is not None
                and any(id(each) in self._lenders or id(each) in rebuilt for each in held.holding.contents)
            ):
                rebuilt[id(held.value)] = held
        lending, unrestorable = [], []
        for held in self._held:
            lent = [i for i, each in enumerate(held.holding.contents) if id(each) in self._lenders or id(each) in rebuilt]
            if lent and held.holding.put is not None:
                lending.append(held)
            elif lent and held.holding.rebuild is None:
                traces = (_Trace(held.trace, held.holding, i) for i in lent)
                unrestorable += [_named(held.holding.contents[trace.position], trace) for trace in traces]
        return rebuilt, lending, unrestorable

    def _keep(self, root: Any, name: str) -> None:
        """Keep an object and what it holds; what is nearest comes first."""
        waiting: deque[tuple[Any, int, _Trace]] = deque([(root, 0, _Trace(None, name=name))])
        left = self._reach.values
        while waiting and left > 0:
            value, depth, trace = waiting.popleft()
            if isinstance(value, _PLAIN) or id(value) in self._known or depth > self._reach.depth:
                continue
            self._known[id(value)] = value
            left -= 1
            if isinstance(value, (type, FunctionType)):
                trace = _Trace(None, name=value.__qualname__.replace("<locals>.", ""))
            for holding, is_walked in self._keep_value(value, trace):
                if holding.put is not None:
                    self._restores.append(partial(holding.put, holding.contents))
                self._held.append(_Held(value, holding, trace))
                if is_walked:
                    waiting.extend((each, depth + 1, _Trace(trace, holding, i)) for i, each in enumerate(holding.contents))

    def _keep_value(self, value: Any, trace: _Trace) -> Iterable[tuple[Holding, bool]]:
        """Keep one value; the holdings of what it holds, each with whether its contents are kept too."""
        if isinstance(value, Tensor):
            self._keep_tensor(value)
            return ()
        if isinstance(value, np.ndarray):
            return self._keep_array(value)
        restore = saved_generator(value) or saved_in_place(value)
        if restore is not None:
            self._restores.append(restore)
            return ()
        if isinstance(value, (type, FunctionType)):
            return self._holdings_of_code(value)
        lender = lender_of(value, self._reach.is_closed)
        if lender is not None:
            self._lenders[id(value)] = lender, trace
            return [(Holding(lender.inner, lambda _: "", rebuild=list), True)]
        return self._holdings_of(value)

    def _holdings_of_code(self, code: Any) -> Iterable[tuple[Holding, bool]]:
        if not self._reach.opens_code(code):
            return ()
        return [(holding_of_class(code) if isinstance(code, type) else holding_of_function(code), True)]

    def _holdings_of(self, value: Any) -> Iterable[tuple[Holding, bool]]:
        container = holding_of_container(value)
        if container is not None:
            yield container, len(value) <= self._reach.entries
        for holding in other_holdings(value):
            yield holding, True
        if not self._reach.opens(value):
            return
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict) and id(attributes) not in self._known:
            self._known[id(attributes)] = attributes
            yield holding_of_attributes(attributes), True
        slots = holding_of_slots(value)
        if slots is not None:
            yield slots, True
        kinds = [kind for kind in type(value).__mro__ if id(kind) not in self._known]
        if kinds:
            yield Holding(kinds, lambda _: ""), True

    def _keep_tensor(self, tensor: Tensor) -> None:
        if self._reach.keeps(tensor):
            numbers = self._numbers[id(tensor)] = copy_of(tensor) if self._reach.copies(tensor) else None
            if tensor.is_leaf and (tensor.requires_grad or tensor.grad is not None):
                self._parameters.append(tensor)
            self._restores.append(saved_tensor(tensor, numbers))

    def _keep_array(self, array: np.ndarray[Any, Any]) -> Iterable[tuple[Holding, bool]]:
        if not self._reach.keeps(array) or not array.flags.writeable:
            return
        content = array.copy()
        if array.dtype.hasobject:
            if array.dtype == object and array.size <= self._reach.entries:
                put = partial(_put_objects, array)
                yield Holding(list(content.flat), lambda index: f".flat[{index}]", put), True
        else:
            self._restores.append(partial(array.__setitem__, ..., content))


def _put_objects(array: np.ndarray[Any, Any], contents: list[Any]) -> None:
    for index, each in enumerate(contents):
        array.flat[index : index + 1] = _boxed(each)


def _boxed(value: Any) -> np.ndarray[Any, Any]:
    """An array that holds one object."""
    box = np.empty(1, dtype=object)
    box[0] = value
    return box


def _named(value: Any, trace: _Trace) -> str:
    return f"{trace.shown} ({type(value).__name__})"
