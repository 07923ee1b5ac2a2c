"""Listens to calls of a function of torch where no hook shows them; the function is given back when nobody listens any more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from threading import Lock, get_ident
from types import FunctionType, GeneratorType
from typing import Any, Final, NamedTuple, TypeAlias

import torch

from lightning_hooks.hooks.untraced import untraced

After: TypeAlias = Callable[[Any], None]
Listener: TypeAlias = Callable[[tuple[Any, ...], Mapping[str, Any]], After | None]
"""Called with the arguments of a call before it is made; what it returns is called with the result."""

_LOCK: Final = Lock()
_wrappers: dict[tuple[int, str], _Wrapper] = {}  # by the id of the owner, which the wrapper holds, and the name


class Listening:
    """Calls a function at each call of another one that the same thread makes, until `remove` is called.

    All listeners of a function share one wrapper, so that runs may end in any order. If somebody else has wrapped the function
    after us, their wrapper stays, and ours passes all calls through. Code that is being compiled is not listened to.

    Args:
        owner: the module or the class that has the function; or the cell of a closure, as of `cell_of`.
        name: of the function; `cell_contents` for a cell.
        listener: what is called.
        reads_iterators: whether the listener reads iterators that are arguments, such as `model.parameters()`. It gets lists of
            what is in them, and the function gets new iterators.

    Example:
        >>> import math
        >>> before = math.sqrt
        >>> listening = Listening(math, "sqrt", lambda args, kwargs: print(args))
        >>> listening.start()
        >>> math.sqrt(4.0)
        (4.0,)
        2.0
        >>> listening.remove(); math.sqrt is before
        True
    """

    def __init__(self, owner: Any, name: str, listener: Listener, *, reads_iterators: bool = False) -> None:
        self._owner, self._name = owner, name
        self._listener = _Heard(get_ident(), listener, reads_iterators)
        self._wrapper: _Wrapper | None = None

    def start(self) -> None:
        """Begin to listen. Keep the object where `remove` will be called before that, in case Ctrl-C arrives in between."""
        key = id(self._owner), self._name
        with _LOCK:
            wrapper = _wrappers.get(key)
            # If somebody has replaced the function since, wrap the one that is called now.
            if wrapper is None or not wrapper.is_called:
                wrapper = _wrappers[key] = _Wrapper(self._owner, self._name)
            self._wrapper = wrapper
            wrapper.listeners = (*wrapper.listeners, self._listener)
            wrapper.install()

    def remove(self) -> None:
        """Listen no more, and give the function back if nobody else listens; a second call does nothing."""
        wrapper = self._wrapper
        if wrapper is None:
            return
        with _LOCK:
            wrapper.listeners = tuple(each for each in wrapper.listeners if each is not self._listener)
            if not wrapper.listeners:
                wrapper.give_back()
                if _wrappers.get((id(self._owner), self._name)) is wrapper:
                    del _wrappers[id(self._owner), self._name]
        self._wrapper = None


class _Heard(NamedTuple):
    """A listener with the thread to which it listens, and whether it reads iterators."""

    thread: int
    listener: Listener
    reads_iterators: bool


class _Wrapper:
    """Stands in the place of a function while there are listeners."""

    def __init__(self, owner: Any, name: str) -> None:
        self.listeners: tuple[_Heard, ...] = ()
        self._owner, self._name = owner, name
        self._original = original = getattr(owner, name)

        @untraced
        @wraps(original)
        def listened(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return original(*args, **kwargs)
            thread = get_ident()
            listeners = [each for each in self.listeners if each.thread == thread]
            shown, shown_kwargs = args, kwargs
            if any(each.reads_iterators for each in listeners):
                shown, shown_kwargs = tuple(map(_in_list, args)), {key: _in_list(each) for key, each in kwargs.items()}
                args = tuple(map(_again, args, shown))
                kwargs = {key: _again(each, shown_kwargs[key]) for key, each in kwargs.items()}
            afters = [each.listener(shown, shown_kwargs) for each in listeners]
            result = original(*args, **kwargs)
            for after in afters:
                if after is not None:
                    after(result)
            return result

        # `torch.jit.script` and Dynamo look for these names, and then read the function itself: the wrapper has other globals.
        vars(listened).update({"__script_if_tracing_wrapper": True, "__original_fn": original})
        self._ours = listened

    @property
    def is_called(self) -> bool:
        """Whether the owner has this wrapper now."""
        return getattr(self._owner, self._name) is self._ours

    def install(self) -> None:
        if getattr(self._owner, self._name) is self._original:
            setattr(self._owner, self._name, self._ours)

    def give_back(self) -> None:
        if self.is_called:
            setattr(self._owner, self._name, self._original)


def _in_list(given: Any) -> Any:
    """What an iterator gives, as a list; anything else as it is."""
    return [*given] if isinstance(given, Iterator) else given


def _again(given: Any, listed: Any) -> Any:
    """An iterator over a list in the place of the one that gave the list, of the same type if that is a generator."""
    if listed is given:
        return given
    return (each for each in listed) if isinstance(given, GeneratorType) else iter(listed)


def cell_of(function: Any) -> tuple[Any, str] | None:
    """Where a decorated function keeps the function inside: owner and name for `Listening`. None if it keeps no single one.

    A call is heard there under whatever name the decorated function was imported.

    Example:
        >>> cell, name = cell_of(torch.nn.utils.clip_grad_norm_)
        >>> getattr(cell, name).__name__
        'clip_grad_norm_'
    """
    cells = [each for each in getattr(function, "__closure__", None) or () if isinstance(each.cell_contents, FunctionType)]
    return (cells[0], "cell_contents") if len(cells) == 1 else None
