"""Probes: each uses a private name of torch as the package does, and raises if that does not work."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor


def hook_dictionary() -> None:
    """Place a hook into the dictionary of a tensor's hooks, as `Tensor.register_hook` does, and run a backward pass.

    Raises:
        Exception: the backward pass does not call this hook, or does not call a hook that is registered afterwards.
    """
    gradients: list[Tensor] = []
    with torch.inference_mode(False), torch.enable_grad():
        tensor = torch.ones(1, device="cpu", requires_grad=True) * 2.0
        tensor._backward_hooks = OrderedDict({-1: gradients.append})
        tensor.grad_fn._register_hook_dict(tensor)  # type: ignore[union-attr]
        tensor.register_hook(lambda grad: gradients.append(grad + 1.0))
        tensor.backward(torch.ones(1, device="cpu"))
    if [grad.item() for grad in gradients] != [1.0, 2.0]:
        raise RuntimeError(f"a backward pass called {len(gradients)} of 2 hooks")
