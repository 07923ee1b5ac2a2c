"""Listens to calls of a function of torch where no hook shows them; the function is given back when nobody listens any more."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from threading import Lock
from typing import Any, Final, TypeAlias
from weakref import WeakMethod

from lightning_hooks.hooks.untraced import untraced

After: TypeAlias = Callable[[Any], None]
Listener: TypeAlias = Callable[[tuple[Any, ...], Mapping[str, Any]], After | None]
"""Called with the arguments of a call before it is made; what it returns is called with the result."""

_LOCK: Final = Lock()
_wrappers: dict[tuple[int, str], _Wrapper] = {}  # by the id of the owner, which the wrapper holds, and the name


class Listening:
    """Calls a method at each call of a function in any thread, from `begin` until `remove`.

    All listeners of a function share one wrapper, so that blocks may end in any order. If somebody else has wrapped the
    function after us, their wrapper stays, and ours passes all calls through.

    Args:
        owner: the module or the class that has the function.
        name: of the function.
        listener: a bound method, which is held by a weak reference.

    Example:
        >>> import math
        >>> class Reader:
        ...     def note(self, args, kwargs):
        ...         print(args)
        >>> before, reader = math.sqrt, Reader()
        >>> listening = Listening(math, "sqrt", reader.note)
        >>> listening.begin()
        >>> math.sqrt(4.0)
        (4.0,)
        2.0
        >>> listening.remove()
        >>> math.sqrt is before
        True
    """

    def __init__(self, owner: Any, name: str, listener: Listener) -> None:
        self._owner, self._name = owner, name
        self._listener = WeakMethod(listener)
        self._wrapper: _Wrapper | None = None

    def begin(self) -> None:
        """Begin to listen. Keep this object for its removal first: Ctrl-C may arrive in between."""
        key = id(self._owner), self._name
        with _LOCK:
            wrapper = _wrappers.get(key)
            # If somebody has replaced the function since, wrap the one that is called now.
            if wrapper is None or not wrapper.is_called:
                wrapper = _wrappers[key] = _Wrapper(self._owner, self._name)
            self._wrapper = wrapper
            wrapper.listeners = [*wrapper.listeners, self]
            wrapper.install()

    def remove(self) -> None:
        """Listen no more, and give the function back if nobody else listens; a second call does nothing."""
        key = id(self._owner), self._name
        with _LOCK:
            wrapper = self._wrapper
            if wrapper is None:
                return
            wrapper.listeners = [each for each in wrapper.listeners if each is not self]
            if not wrapper.listeners:
                wrapper.give_back()
                if _wrappers.get(key) is wrapper:
                    del _wrappers[key]
            self._wrapper = None

    def hear(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> After | None:
        """Tell the listener of a call, if the listener is still there."""
        listener = self._listener()
        return None if listener is None else listener(args, kwargs)


class _Wrapper:
    """Stands in the place of a function while there are listeners."""

    def __init__(self, owner: Any, name: str) -> None:
        self.listeners: list[Listening] = []
        self._owner, self._name = owner, name
        self._original = original = vars(owner)[name]

        @wraps(original)
        def listened(*args: Any, **kwargs: Any) -> Any:
            afters = [listener.hear(args, kwargs) for listener in self.listeners]
            result = original(*args, **kwargs)
            for after in afters:
                if after is not None:
                    after(result)
            return result

        self._ours = untraced(listened)

    @property
    def is_called(self) -> bool:
        """Whether the owner has this wrapper now."""
        return vars(self._owner)[self._name] is self._ours

    def install(self) -> None:
        if vars(self._owner)[self._name] is self._original:
            setattr(self._owner, self._name, self._ours)

    def give_back(self) -> None:
        if self.is_called:
            setattr(self._owner, self._name, self._original)
