"""One owner of all handles: everything registered here is removed here, once, whatever happens."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Removable(Protocol):
    """What registering a hook returns."""

    def remove(self) -> None:
        """Take the hook away; harmless the second time."""


class Handles:
    """A set of handles that is emptied as one.

    Example:
        >>> from torch import nn
        >>> layer, handles = nn.Linear(1, 1), Handles()
        >>> _ = handles.keep(layer.register_forward_hook(print))
        >>> handles.close(); handles.close(); len(layer._forward_hooks)
        0
    """

    def __init__(self) -> None:
        self._kept: list[Removable] = []
        self._keys: set[object] = set()

    def keep(self, handle: Any, key: object = None) -> Any:
        """Take over a handle and return it; a key can be asked for with `in` until the handles are closed."""
        self._kept.append(handle)
        if key is not None:
            self._keys.add(key)
        return handle

    def __contains__(self, key: object) -> bool:
        """Whether a handle is held under a key."""
        return key in self._keys

    def close(self) -> None:
        """Remove every handle, also when removing one of them fails."""
        failed: BaseException | None = None
        again: list[Removable] = []
        while self._kept:  # one by one: after an interruption the next call goes on
            try:
                self._kept[-1].remove()
            except BaseException as error:  # an interruption too: the others must have their turn
                failed = failed or error
                if not isinstance(error, Exception):
                    again.append(self._kept[-1])
            self._kept.pop()
        self._kept = again
        self._keys.clear()
        if failed is not None:
            raise failed

    def __len__(self) -> int:
        """How many handles are held."""
        return len(self._kept)


def for_each(action: Callable[[T], None], items: Iterable[T]) -> None:
    """Do something with every item, also when that fails for some.

    Args:
        action: what.
        items: with what.

    Raises:
        BaseException: the first failure, once all is done.
    """
    failed: BaseException | None = None
    for item in items:
        try:
            action(item)
        except BaseException as error:  # an interruption too: the others must have their turn
            failed = failed or error
    if failed is not None:
        raise failed


class OurHook:
    """Base of every hook object of this package.

    A copy or a pickle of a module made while it is hooked carries `nothing` of the standard library in its place: it works
    alone, and can be read where this package is absent. Hooks of which there is one at every tap have slots: there may be
    thousands.
    """

    __slots__ = ()
    __torch_unserializable__ = True  # torch writes no hooks of tensors, and is not to warn about ours

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable[..., None]:
        """What a deep copy of a hooked module carries instead."""
        return nothing

    def __reduce__(self) -> tuple[Any, ...]:
        """What a pickle of a hooked module carries instead."""
        return (getattr, (nullcontext, nothing.__name__))


nothing: Callable[..., None] = nullcontext.__exit__
"""Takes any arguments and does nothing, as torch calls hooks of every kind."""
