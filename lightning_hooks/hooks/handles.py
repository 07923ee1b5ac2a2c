"""Handles of hooks and their removal, and the base class of every hook object of this package."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any, Final, Protocol, TypeVar
from weakref import ReferenceType

from torch.utils.hooks import RemovableHandle

from lightning_hooks.hooks.untraced import untraced

T = TypeVar("T")
_OF_TENSORS: Final = ("_backward_hooks", "_post_accumulate_grad_hooks")


_AT_FIRST_SWITCH: list[Callable[[], None]] = []


def at_first_switch(function: Callable[[], None]) -> Callable[[], None]:
    """Call a function when the first switch is created: set-up that a process needs only if it hooks something."""
    _AT_FIRST_SWITCH.append(function)
    return function


def run_at_first_switch() -> None:
    """Call the functions of `at_first_switch`, each once in a process."""
    while _AT_FIRST_SWITCH:
        _AT_FIRST_SWITCH.pop(0)()


class Removable(Protocol):
    """The handle that registering a hook returns; a second call of `remove` does nothing."""

    def remove(self) -> None: ...


class Handles:
    """A set of handles that are removed together: `close` removes every hook once, also after an error.

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
        """Keep a handle and return it. Until the handles are closed, `key in handles` is True."""
        self._kept.append(handle)
        if key is not None:
            self._keys.add(key)
        return handle

    def register(self, register: Callable[..., Any], hook: Callable[..., Any], key: object = None, **options: Any) -> Any:
        """Register a hook and keep its handle, so that `close` removes the hook even if Ctrl-C arrives at any moment.

        Args:
            register: a bound method of torch, for example `module.register_forward_hook`.
            hook: the hook to register.
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
        # Replace the pending entry by the handle, which takes less memory: there may be thousands of hooks.
        if self._kept[-1] is pending:
            self._kept[-1] = handle
        return handle

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def close(self) -> None:
        """Remove every handle, also if one of them raises; then raise the first error."""
        if not self._kept:
            return
        failed: BaseException | None = None
        interrupted: list[Removable] = []
        # Drop each handle after its removal, so that after a second Ctrl-C the next call continues.
        while self._kept:
            # Catch Ctrl-C too: the other handles must still be removed.
            try:
                self._kept[-1].remove()
            except BaseException as error:
                failed = failed or error
                if not isinstance(error, Exception):
                    interrupted.append(self._kept[-1])
            self._kept.pop()
        self._kept = interrupted
        self._keys.clear()
        if failed is not None:
            raise failed

    def __len__(self) -> int:
        return len(self._kept)


class Places:
    """The places of hooks in the dictionaries of torch, which they take again and again. The hooks are removed together.

    Dictionaries are held weakly, as by every handle: what removes hooks is not to keep a model alive.
    """

    __slots__ = ("_places",)

    def __init__(self) -> None:
        self._places: list[tuple[ReferenceType[Any], int]] = []

    def add(self, handle: RemovableHandle) -> None:
        """Note the places of a hook that was just registered: torch keeps it, and each of its options, under one number."""
        for reference in (handle.hooks_dict_ref, *handle.extra_dict_ref):
            if handle.id in (reference() or ()):
                self._places.append((reference, handle.id))

    def leave_out(self, number: int) -> None:
        """Forget the places under a number, which no hook takes any more."""
        self._places = [place for place in self._places if place[1] != number]

    def remove(self) -> None:
        """Remove the hooks, also if Ctrl-C arrives meanwhile; a second call does nothing."""
        failed: BaseException | None = None
        for reference, number in self._places:
            # This is what `RemovableHandle.remove` does, without a call for each hook.
            try:
                hooks = reference()
                if hooks is not None and number in hooks:
                    del hooks[number]
            except BaseException as error:
                (reference() or {}).pop(number, None)
                failed = failed or error
        if failed is not None:
            raise failed


class _Pending:
    """A hook that is being registered: holds its owner and, as soon as torch has returned it, its handle."""

    __slots__ = ("handle", "hook", "owner")

    def __init__(self, owner: Any, hook: Callable[..., Any]) -> None:
        self.owner = owner
        self.hook = hook
        self.handle: Removable | None = None

    def remove(self) -> None:
        if self.handle is not None:
            self.handle.remove()
            return
        # Ctrl-C may have arrived after torch added the hook and before the handle was kept. Remove the hook from the owner.
        attributes = [*vars(self.owner).items()] + [(name, getattr(self.owner, name, None)) for name in _OF_TENSORS]
        dictionaries = {name: hooks for name, hooks in attributes if isinstance(hooks, dict)}
        for name, hooks in dictionaries.items():
            for number in [number for number, hook in hooks.items() if hook is self.hook]:
                del hooks[number]
                # Torch keeps the options of a hook in further dictionaries under the same number, such as
                # `_forward_hooks_with_kwargs`.
                for other, options in dictionaries.items():
                    if other.startswith(f"{name}_"):
                        options.pop(number, None)


def for_each(action: Callable[[T], None], items: Iterable[T]) -> None:
    """Call `action` with every item, also if it raises for some of them; then raise the first error."""
    failed: BaseException | None = None
    for item in items:
        # Catch Ctrl-C too: the other items must still be handled.
        try:
            action(item)
        except BaseException as error:
            failed = failed or error
    if failed is not None:
        raise failed


class OurHook:
    """Base of every hook object of this package.

    If a hooked module is copied or pickled, `nothing`, a function of the standard library, takes the place of each hook. So the
    copy works without the hook manager, and can be loaded where this package is not installed. Hooks of which there is one per
    row have `__slots__`, because there may be thousands. Dynamo does not compile the call of a hook as code of its own.
    """

    __slots__ = ()
    __torch_unserializable__ = True  # Torch does not save hooks of tensors, and with this mark does not warn about them.

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "__call__" in vars(cls):
            untraced(vars(cls)["__call__"])

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable[..., None]:
        return nothing

    def __reduce__(self) -> tuple[Any, ...]:
        return (getattr, (nullcontext, nothing.__name__))


nothing: Callable[..., None] = nullcontext.__exit__
"""Takes any arguments and returns None, so it can stand for a hook of any kind."""
