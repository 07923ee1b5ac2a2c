"""The hooks of the tutorials, as functions that a YAML rule can name."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

seen: list[Any] = []
NOISE = 0.25


def add_two(grad: Tensor) -> Tensor:
    return grad + 2


def look(grad: Tensor) -> None:
    seen.append(grad.clone())


def add_hundred(grad: Tensor) -> Tensor:
    return grad + 100


def double(grad: Tensor) -> Tensor:
    return grad * 2


def zero(grad: Tensor) -> Tensor:
    return torch.zeros_like(grad)


def nothing_below_zero(grad: Tensor) -> Tensor:
    return grad.clamp(min=0)


def ones_for_input(module: Any, grad_input: tuple[Tensor, ...], grad_output: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(torch.ones_like(grad) for grad in grad_input)


def noisy(grad: Tensor) -> Tensor:
    return grad + NOISE


def see_input(module: Any, args: tuple[Tensor, ...]) -> None:
    seen.append(("input", args[0].clone()))


def see_both(module: Any, args: tuple[Tensor, ...], output: Tensor) -> None:
    seen.append(("output", args[0].clone(), output.detach().clone()))
