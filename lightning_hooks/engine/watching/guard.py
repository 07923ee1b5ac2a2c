"""Guard: surrounds work of this package inside the user's code, and hands on what it raises."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any
from weakref import WeakMethod

from lightning_hooks.engine.participants.overhead import Account


class Guard:
    """Hands an error of the work inside to a method, which raises it or lets training continue.

    It may be entered often, and nested. It is a class, because every step enters it many times, and a generator with
    `contextmanager` takes three times as many calls.

    Args:
        fail: a method that takes the error. It is held by a weak reference, so that its object may keep the guard. Errors that
            end the program, such as a `KeyboardInterrupt`, pass.
        given: further arguments of the method.
    """

    def __init__(self, fail: Callable[..., None], *given: Any) -> None:
        self._fail = WeakMethod(fail)
        self._given = given

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        if not isinstance(error, Exception):
            return False
        fail = self._fail()
        assert fail is not None, "the object of a guard ended before the work inside the guard"
        fail(error, *self._given)
        return True


class AccountedGuard:
    """A guard around work whose time an account takes.

    Args:
        account: takes the time.
        guard: handles an error.
    """

    def __init__(self, account: Account, guard: Guard) -> None:
        self._account, self._guard = account, guard

    def __enter__(self) -> None:
        self._account.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        # The account goes on until the error is handled.
        try:
            return self._guard.__exit__(kind, error, trace)
        finally:
            self._account.__exit__(kind, error, trace)
