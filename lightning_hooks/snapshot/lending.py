"""Lending: what a step gets in the place of an object that cannot be put back.

Nothing rewinds a generator, a counter or an object of compiled code, and the damage is done before a comparison shows it. So a
step never meets such an object: it gets a copy if one can be made, and otherwise an `Untouchable`, which ends the step at
the first touch. Afterwards the object itself returns to its place, exactly as it was. A copy of the whole model, or a process
of its own for the step, would need the same copies, and neither goes together with a GPU and the threads of a run.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from functools import cache
from io import IOBase
from types import MemberDescriptorType
from typing import Any, Final

INERT: Final = (
    "_abc", "_contextvars", "_functools", "_operator", "_struct", "_thread", "_weakref", "_zoneinfo", "abc", "builtins",
    "collections", "contextvars", "datetime", "decimal", "functools", "inspect", "lightning_hooks", "numpy", "operator", "re",
    "struct", "torch", "triton", "types", "typing", "weakref", "zoneinfo",
)  # fmt: skip
"""Libraries whose compiled objects a step does not change, or which are restored by what they hold."""
STREAMS: Final = ("queue", "_queue", "multiprocessing", "socket", "_socket")
"""Libraries of objects from which whoever reads takes something away, and to which other threads may write."""
_GENERATORS: Final = (Generator, AsyncGenerator, Coroutine)

Lend = Callable[[Any], Any]
"""Returns what is lent in the place of an object, which may be the object itself."""


class UntouchableError(BaseException):
    """A step touches an object that could not be restored afterwards; the message says which, as a clause.

    A `BaseException`, so that code in the step that catches `Exception` does not catch it.
    """


class Untouchable:
    """Stands in the place of an object that cannot be restored, and raises where code uses it.

    Args:
        name: of the object, as `model.held (generator)`.
    """

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __iter__(self) -> Untouchable:
        return self

    def __getattr__(self, name: str) -> Any:
        self._refuse()

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        raise UntouchableError(f"the step uses {self._name}, which cannot be restored")

    __next__ = __call__ = __len__ = __bool__ = __getitem__ = __setitem__ = __contains__ = __enter__ = __exit__ = _refuse


class Lender:
    """How one object is lent.

    Args:
        value: the object.

    Attributes:
        inner: the objects that a copy of the object is made of.
    """

    def __init__(self, value: Any) -> None:
        self._is_iterator = is_iterator(value)
        self._copy: Any = None
        self.inner: list[Any] = []
        self._reduced: tuple[Any, ...] | None = None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                if self._is_iterator:
                    self._reduced = _reduced(value)
                    self.inner = [*self._reduced[1], *_inner_state(self._reduced)]
                elif not _is_stream(value):
                    self._copy = copy.deepcopy(value)
        # An object of another library may refuse to be copied in any way.
        except Exception:
            self._reduced = self._copy = None

    def lent(self, name: str, lend: Lend) -> Any:
        """What is lent: of an iterator a new copy, of another object the same one each time.

        Args:
            name: of the object.
            lend: lends the objects within.
        """
        if self._reduced is None:
            return Untouchable(name) if self._copy is None else self._copy
        make, args, *more = self._reduced
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = make(*map(lend, args))
            state = more[0] if more else None
            if state is not None:
                made.__setstate__(tuple(map(lend, state)) if isinstance(state, tuple) else state)
        return made


def _reduced(iterator: Any) -> tuple[Any, ...]:
    reduced = iterator.__reduce__()
    # `copyreg` makes an empty object of a class that does not say how it is copied.
    if not isinstance(reduced, tuple) or getattr(reduced[0], "__module__", "") == "copyreg":
        raise TypeError("the iterator cannot be copied")
    return reduced


def _inner_state(reduced: tuple[Any, ...]) -> list[Any]:
    state = reduced[2] if len(reduced) > 2 else None
    return list(state) if isinstance(state, tuple) else []


def lender_of(value: Any, closed: Callable[[Any], bool]) -> Lender | None:
    """How a value is lent; None if it is not, because it is restored by what it holds, or does not change.

    Args:
        value: any object.
        closed: whether the library of the value belongs to the run.
    """
    if _is_stream(value):
        return Lender(value)
    if closed(value):
        return None
    return Lender(value) if is_iterator(value) or _hides_state(value) else None


def is_iterator(value: Any) -> bool:
    """Whether a value is an iterator of compiled code, whose position no attribute shows."""
    kind: type = type(value)
    return hasattr(kind, "__next__") and _solid(kind) is not object


def _is_stream(value: Any) -> bool:
    return isinstance(value, (*_GENERATORS, IOBase)) or type(value).__module__.partition(".")[0] in STREAMS


def _hides_state(value: Any) -> bool:
    kind: type = type(value)
    return _solid(kind).__module__.partition(".")[0] not in INERT


@cache
def _solid(kind: type) -> type:
    """The nearest base, the class itself included, that has memory beside attributes and slots; `object` if there is none.

    Example:
        >>> _solid(type("Counts", (dict,), {}))
        <class 'dict'>
        >>> _solid(type("Pair", (tuple,), {}))
        <class 'tuple'>
    """
    if kind is object:
        return object
    base = kind.__base__ or object
    return kind if _hidden_bytes(kind) > _hidden_bytes(base) else _solid(base)


def _hidden_bytes(kind: type) -> int:
    slots = sum(isinstance(each, MemberDescriptorType) for base in kind.__mro__ for each in vars(base).values())
    # An object of a class of tuples has its `__dict__` behind its items, which an offset of -8 says.
    has_place_of_dict = kind.__dictoffset__ > 0 or kind.__dictoffset__ == -8
    return kind.__basicsize__ + kind.__itemsize__ - 8 * (slots + has_place_of_dict + (kind.__weakrefoffset__ > 0))
