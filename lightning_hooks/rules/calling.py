"""What a user's function takes: checked by its signature when a rule is made, so that no step ends in a `TypeError`."""

from __future__ import annotations

import inspect
import sys
from types import BuiltinFunctionType, MethodDescriptorType, ModuleType
from typing import Any

from lightning_hooks.errors import RuleError


def takes(call: Any, *arguments: str) -> bool | None:
    """Whether something can be called with so many positional arguments; None if it does not say what it takes.

    Args:
        call: anything that can be called.
        arguments: their names.

    Example:
        >>> takes(lambda tensor: tensor, "tensor"), takes(lambda tensor: tensor, "name", "tensor")
        (True, False)
    """
    signature = _signature(call)
    try:
        if signature is None:
            return None
        signature.bind(*arguments)
    except TypeError:
        return False
    return True


def _signature(call: Any) -> inspect.Signature | None:
    """What something takes; None if it does not say."""
    is_module = getattr(type(call).__call__, "__module__", "") == "torch.nn.modules.module"  # takes anything but in forward
    try:
        return inspect.signature(call.forward if is_module else call)
    except (TypeError, ValueError):
        return None


def check_takes(call: Any, where: str, *arguments: str) -> None:
    """Refuse something that cannot be called with these arguments; what does not say what it takes is accepted.

    Raises:
        RuleError: with the option and the arguments.
    """
    if takes(call, *arguments) is False:
        given = f"({', '.join(arguments)})"
        raise RuleError(f"{where}: {call!r} cannot be called with {given}; it takes {_signature(call)}")


def check_takes_tensor(call: Any, where: str) -> None:
    """Refuse something that cannot be called with one tensor. Functions of torch do not say so: they are called with one.

    Raises:
        RuleError: with the option.
    """
    check_takes(call, where, "tensor")
    if not _is_of_torch(call):
        return
    import torch  # here, so that a rule of names alone does not load torch

    with torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            call(torch.ones(2, 2, device="cpu"))
        except TypeError as error:
            reason = str(error).partition("\n")[0]
            raise RuleError(f"{where}: {call!r} cannot be called with (tensor): {reason}") from error
        except Exception:  # it takes a tensor, but not of every shape or type
            return


def _is_of_torch(call: Any) -> bool:
    """Whether something is a function in C of torch itself; one of another library may not be called for a check."""
    if isinstance(call, MethodDescriptorType):
        return call.__objclass__.__module__.partition(".")[0] == "torch"
    if not isinstance(call, BuiltinFunctionType) or "torch" not in sys.modules:
        return False
    holder = getattr(call, "__self__", None)
    is_in_module = isinstance(holder, ModuleType) and holder.__name__.partition(".")[0] == "torch"
    return is_in_module or getattr(sys.modules["torch"], call.__name__, None) is call
