"""State of this package about an object of another library, kept on that object as long as the object lives."""

from __future__ import annotations

from typing import Any, Final, TypeVar

T = TypeVar("T")
_ATTRIBUTE: Final = "_lightning_hooks"


def attached_to(owner: object, kind: type[T]) -> T:
    """The state that an object carries; made at the first call.

    A process-wide map with weak keys would do the same, but could not be seen from the object.

    Args:
        owner: for example a Trainer; it carries state of one kind.
        kind: the class of the state, which needs no arguments.

    Example:
        >>> class Trainer: ...
        >>> trainer = Trainer()
        >>> attached_to(trainer, list).append(1)
        >>> attached_to(trainer, list)
        [1]
    """
    attributes: dict[str, Any] = vars(owner)
    if _ATTRIBUTE not in attributes:
        attributes[_ATTRIBUTE] = kind()
    state: T = attributes[_ATTRIBUTE]
    return state


class AttachedState:
    """Base of a kept state: a copy or a pickle of its owner starts with an empty one."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()
