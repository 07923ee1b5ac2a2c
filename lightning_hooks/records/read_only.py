"""A read-only dictionary that can be pickled, copied and written as JSON."""

from __future__ import annotations

from typing import Any, NoReturn, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class ReadOnlyDict(dict[K, V]):
    """A copy of a mapping that raises a `TypeError` on every change. `dict(…)` and `copy()` give a plain dictionary.

    Example:
        >>> ReadOnlyDict({"a": 1.0})["a"]
        1.0
        >>> ReadOnlyDict(a=1.0).update(a=2.0)
        Traceback (most recent call last):
        TypeError: a step view is read-only; change a copy: dict(view.summaries)
    """

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError("a step view is read-only; change a copy: dict(view.summaries)")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (dict(self),))
