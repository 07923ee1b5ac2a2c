"""All that a training holds, as it is at one moment, to compare two moments bit for bit."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_flatten_with_path


def state_of(model: nn.Module, optimizers: Iterable[Optimizer] = (), batch: Any = None) -> dict[str, Any]:
    """Parameters, buffers, gradients, flags, hooks, optimizers, the batch, and the generators of random numbers, by name."""
    state: dict[str, Any] = {f"parameter {name}": value.detach().clone() for name, value in model.named_parameters()}
    for name, parameter in model.named_parameters():
        state[f"gradient {name}"] = None if parameter.grad is None else parameter.grad.detach().clone()
        state[f"requires_grad {name}"] = parameter.requires_grad
    state |= {f"buffer {name}": value.detach().clone() for name, value in model.named_buffers()}
    for name, module in model.named_modules():
        state[f"training {name}"] = module.training
        kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
        state[f"hooks {name}"] = sum(len(getattr(module, kind)) for kind in kinds)
    for number, optimizer in enumerate(optimizers):
        flat, _ = tree_flatten_with_path(optimizer.state_dict())
        for path, value in flat:
            place = "".join(map(str, path))
            state[f"optimizer {number} {place}"] = value.clone() if isinstance(value, Tensor) else value
    for path, value in tree_flatten_with_path(batch)[0]:
        state[f"batch {''.join(map(str, path))}"] = value.clone() if isinstance(value, Tensor) else value
    generators = {"torch": torch.get_rng_state(), "python": random.getstate(), "numpy": repr(np.random.get_state())}
    return state | {f"generator {name}": value for name, value in generators.items()}


def differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """The names of what differs between two states, NaN being equal to itself."""
    return sorted(name for name in {*before, *after} if not _is_equal(before.get(name), after.get(name)))


def _is_equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one.nan_to_num(77), other.nan_to_num(77))
    return type(one) is type(other) and bool(one == other)
