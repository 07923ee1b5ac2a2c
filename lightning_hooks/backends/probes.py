"""What is asked of torch before a private part of it is used: each does what it is asked for, and says whether that worked."""

from __future__ import annotations

from functools import cache

import torch


def exchange_table() -> object | None:
    """The DLPack exchange table of tensors, by which memory is read without torch; None where this torch has none."""
    return getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)


@cache
def takes_hook_dictionary() -> bool:
    """Whether a node of the graph takes a dictionary of hooks, as `Tensor.register_hook` gives it one: tried by a backward."""
    seen: list[torch.Tensor] = []
    leaf = torch.zeros(1, requires_grad=True)
    try:
        with torch.enable_grad():
            tensor = leaf.clone()
            node = tensor.grad_fn
            if tensor._backward_hooks is not None or node is None:
                return False
            tensor._backward_hooks = {-1: seen.append}
            node._register_hook_dict(tensor)
            tensor._backward_hooks = None
            tensor.backward()
    except (AttributeError, TypeError, RuntimeError):
        return False
    return len(seen) == 1
