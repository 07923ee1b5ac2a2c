"""Checks of the signature of a user's function when a rule is constructed, so that no step ends in a `TypeError`."""

from __future__ import annotations

import inspect
import sys
from types import BuiltinFunctionType, MethodDescriptorType, ModuleType
from typing import Any

from lightning_hooks.errors import RuleError


def takes(call: Any, *arguments: str) -> bool | None:
    """Whether a callable accepts these positional arguments; None if its signature is not known, as of functions in C.

    Args:
        call: a callable.
        arguments: the names of the positional arguments; only their number counts.

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
    """The signature of a callable; None if Python does not know one."""
    # `nn.Module.__call__` accepts any arguments and passes them to `forward`, which has the signature that counts.
    is_module = getattr(type(call).__call__, "__module__", "") == "torch.nn.modules.module"
    try:
        return inspect.signature(call.forward if is_module else call)
    except (TypeError, ValueError):
        return None


def check_takes(call: Any, where: str, *arguments: str) -> None:
    """Check that a callable accepts these positional arguments; one without a known signature passes.

    Raises:
        RuleError: the callable does not accept the arguments; the message names the option and the arguments.
    """
    if takes(call, *arguments) is False:
        given = f"({', '.join(arguments)})"
        raise RuleError(f"{where}: {call!r} cannot be called with {given}; it takes {_signature(call)}")


def check_takes_tensor(call: Any, where: str) -> None:
    """Check that a callable accepts one tensor. Functions in C of torch have no signature: call them with a small tensor.

    Raises:
        RuleError: the callable does not accept a tensor; the message names the option.
    """
    check_takes(call, where, "tensor")
    if not _is_of_torch(call):
        return
    # Import torch here, so that a rule that holds only names does not load torch.
    import torch

    with torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            call(torch.ones(2, 2, device="cpu"))
        except TypeError as error:
            reason = str(error).partition("\n")[0]
            raise RuleError(f"{where}: {call!r} cannot be called with (tensor): {reason}") from error
        # Any other error means that the function accepts a tensor, but not of this shape or dtype.
        except Exception:
            return


def _is_of_torch(call: Any) -> bool:
    """Whether a callable is a function in C of torch. Functions of other libraries are not called for a check."""
    if isinstance(call, MethodDescriptorType):
        return call.__objclass__.__module__.partition(".")[0] == "torch"
    if not isinstance(call, BuiltinFunctionType) or "torch" not in sys.modules:
        return False
    holder = getattr(call, "__self__", None)
    is_in_module = isinstance(holder, ModuleType) and holder.__name__.partition(".")[0] == "torch"
    return is_in_module or getattr(sys.modules["torch"], call.__name__, None) is call
