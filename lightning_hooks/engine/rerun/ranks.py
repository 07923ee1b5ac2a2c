"""Ends a step that one rank runs alone before it waits for other ranks."""

from __future__ import annotations

from typing import Any, Final

from torch.utils._python_dispatch import TorchDispatchMode

_COLLECTIVES: Final = frozenset({"c10d", "_c10d_functional", "c10d_functional", "_c10d_functional_autograd", "symm_mem"})
"""The namespaces of operators that wait for other ranks."""


class CommunicationError(BaseException):
    """A step that one rank runs alone would wait for other ranks; the message names the operator.

    A `BaseException`, so that code in the step that catches `Exception` does not catch it.
    """


class DispatchMode:
    """The entry of a dispatch mode, a base beside `TorchDispatchMode`.

    If a mode's own class had the entry, torch would wrap it, and the wrapper imports the compiler, which takes seconds.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.dispatched(func, args, kwargs or {})

    def dispatched(self, operator: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        raise NotImplementedError


class WithoutOtherRanks(DispatchMode, TorchDispatchMode):
    """A context in which an operator that exchanges tensors with other ranks raises `CommunicationError` before it begins."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def dispatched(self, operator: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run an operator that needs no other rank."""
        if waits_for_ranks(operator):
            raise CommunicationError(shown_name(operator))
        return operator(*args, **kwargs)


def waits_for_ranks(operator: Any) -> bool:
    """Whether an operator of torch exchanges tensors with other ranks."""
    name: str = operator.name()
    return name.partition("::")[0] in _COLLECTIVES


def shown_name(operator: Any) -> str:
    """The name of an operator without its overload, as records and reports show it, such as `aten.add_`."""
    name: str = operator.name()
    return name.partition(".")[0].replace("::", ".")
