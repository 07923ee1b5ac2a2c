"""What an update divided by, where it has made a parameter that is not finite: the root of its state plus `eps`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.optim import Optimizer

from lightning_hooks.tensor_kinds import held_part

UNDER_ROOTS: Final = ("exp_avg_sq", "square_avg", "sum")
"""The entries of an optimizer's state of which it takes a square root."""


def zero_divisor(optimizers: Sequence[Optimizer], parameter: Tensor | None) -> str:
    """A sentence if elements of a parameter are not finite where the state is 0 and `eps` is too; empty otherwise.

    Args:
        optimizers: one of them has updated the parameter.
        parameter: it is not finite; None if it is not known.

    Example:
        >>> weight = torch.nn.Parameter(torch.ones(2, dtype=torch.float16))
        >>> optimizer = torch.optim.Adam([weight], foreach=False)
        >>> weight.grad = torch.full_like(weight, 1e-3)
        >>> optimizer.step()
        >>> zero_divisor([optimizer], weight)[:76]
        'Where its 2 elements are not finite, exp_avg_sq is 0 for 2, and eps (1e-08) '
    """
    if parameter is None:
        return ""
    for optimizer, group in ((each, group) for each in optimizers for group in each.param_groups):
        eps = group.get("eps")
        if isinstance(eps, float) and eps > 0 and any(each is parameter for each in group["params"]):
            return _sentence(held_part(parameter.detach()), optimizer.state.get(parameter, {}), eps)
    return ""


def _sentence(parameter: Tensor, state: Any, eps: float) -> str:
    found = ((key, held_part(state[key])) for key in UNDER_ROOTS if isinstance(state.get(key), Tensor))
    key, squares = next(found, ("", parameter))
    if not key or squares.shape != parameter.shape or float(torch.tensor(eps, dtype=squares.dtype)) != 0:
        return ""
    is_bad = ~parameter.isfinite()
    zeros, bad = int((is_bad & (squares == 0)).sum()), int(is_bad.sum())
    if not zeros:
        return ""
    dtype = str(squares.dtype).removeprefix("torch.")
    return (
        f"Where its {bad} elements are not finite, {key} is 0 for {zeros}, and eps ({eps:g}) is 0 in {dtype}: the update "
        "divides by the root of the one plus the other."
    )
