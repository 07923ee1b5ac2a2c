"""`without_subclass()`: a context in which a tensor of a subclass is treated as a tensor; a subclass may refuse operations."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from lightning_hooks.private import private


class _Refusing(Tensor):
    @classmethod
    def __torch_function__(cls, *args: Any, **kwargs: Any) -> Any:
        raise TypeError


def _find() -> Any:
    with torch._C.DisableTorchFunctionSubclass():
        torch.empty(0, device="cpu").as_subclass(_Refusing).dim()
    return torch._C.DisableTorchFunctionSubclass


without_subclass: Any = private(
    "torch._C.DisableTorchFunctionSubclass", _find, nullcontext, "errors of a subclass of Tensor end the training"
)
