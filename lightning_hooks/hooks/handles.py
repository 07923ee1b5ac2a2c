"""What every hook of the package shares: the owner of its handle, and what a copy of it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any, Final, Protocol, TypeVar

T = TypeVar("T")
_OF_TENSORS: Final = ("_backward_hooks", "_post_accumulate_grad_hooks")


_AT_FIRST_SWITCH: list[Callable[[], None]] = []


def at_first_switch(function: Callable[[], None]) -> Callable[[], None]:
    """Call a function when the next switch is made: what a process needs only once it hooks something."""
    _AT_FIRST_SWITCH.append(function)
    return function


def run_at_first_switch() -> None:
    """Call the functions of `at_first_switch`, each once in a process."""
    while _AT_FIRST_SWITCH:
        _AT_FIRST_SWITCH.pop(0)()


class Removable(Protocol):
    """What registering a hook returns; removing it a second time does nothing."""

    def remove(self) -> None: ...


class Handles:
    """A set of handles that is emptied as one: everything registered here is removed here, once, also after an error.

    Example:
        >>> from torch import nn
        >>> layer, handles = nn.Linear(1, 1), Handles()
        >>> _ = handles.register(layer.register_forward_hook, print)
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

    def register(self, register: Callable[..., Any], hook: Callable[..., Any], key: object = None, **options: Any) -> Any:
        """Register a hook and take over its handle, so that an interruption at any moment leaves no hook after `close`.

        Args:
            register: a bound method of torch, for example `module.register_forward_hook`.
            hook: what it registers.
            key: as in `keep`.
            options: passed on to `register`.
        """
        pending = _Pending(getattr(register, "__self__", None), hook)
        self._kept.append(pending)
        try:
            handle = pending.handle = register(hook, **options)
        except Exception:
            self._kept.remove(pending)
            raise
        if key is not None:
            self._keys.add(key)
        if self._kept[-1] is pending:
            self._kept[-1] = handle  # there may be thousands of hooks, and the handle alone takes less memory
        return handle

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def close(self) -> None:
        """Remove every handle, also when removing one of them fails; then raise the first failure."""
        failed: BaseException | None = None
        again: list[Removable] = []
        while self._kept:  # one by one: after an interruption the next call continues
            try:
                self._kept[-1].remove()
            except BaseException as error:  # an interruption too: the others are still removed
                failed = failed or error
                if not isinstance(error, Exception):
                    again.append(self._kept[-1])
            self._kept.pop()
        self._kept = again
        self._keys.clear()
        if failed is not None:
            raise failed

    def __len__(self) -> int:
        return len(self._kept)


class _Pending:
    """A hook that is being registered: the handle as soon as torch returned it, before that the object and the hook."""

    __slots__ = ("handle", "hook", "owner")

    def __init__(self, owner: Any, hook: Callable[..., Any]) -> None:
        self.owner = owner
        self.hook = hook
        self.handle: Removable | None = None

    def remove(self) -> None:
        if self.handle is not None:
            self.handle.remove()
            return
        # Ctrl-C arrived after torch had added the hook and before the handle was kept.
        kept = [*vars(self.owner).items()] + [(name, getattr(self.owner, name, None)) for name in _OF_TENSORS]
        dictionaries = {name: hooks for name, hooks in kept if isinstance(hooks, dict)}
        for name, hooks in dictionaries.items():
            for number in [number for number, hook in hooks.items() if hook is self.hook]:
                del hooks[number]
                for other, options in dictionaries.items():  # `_forward_hooks_with_kwargs` beside `_forward_hooks`
                    if other.startswith(f"{name}_"):
                        options.pop(number, None)


def for_each(action: Callable[[T], None], items: Iterable[T]) -> None:
    """Do something with every item, also when that fails for some; then raise the first failure."""
    failed: BaseException | None = None
    for item in items:
        try:
            action(item)
        except BaseException as error:  # an interruption too: the others still follow
            failed = failed or error
    if failed is not None:
        raise failed


class OurHook:
    """Base of every hook object of this package.

    A copy or a pickle of a module made while it is hooked has `nothing` of the standard library in place of each hook: it works
    alone, and can be read where this package is absent. Hooks of which there is one per row have `__slots__`: there may be
    thousands.
    """

    __slots__ = ()
    __torch_unserializable__ = True  # torch writes no hooks of tensors, and does not warn about these

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable[..., None]:
        return nothing

    def __reduce__(self) -> tuple[Any, ...]:
        return (getattr, (nullcontext, nothing.__name__))


nothing: Callable[..., None] = nullcontext.__exit__
"""Takes any arguments and does nothing, as torch calls hooks of every kind."""
