"""Hooks under names that a YAML rule can give; what they saw."""

from __future__ import annotations

from typing import Any

from torch import Tensor

seen: list[Any] = []


def look(name: str, *args: Any) -> None:
    seen.append(name)


def double(grad: Tensor) -> Tensor:
    return grad * 2


class Times:
    """A hook for gradients that is made from a class path and arguments."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __repr__(self) -> str:
        return f"Times({self.factor})"

    def __call__(self, grad: Tensor) -> Tensor:
        return grad * self.factor


def stop(*args: Any) -> None:
    raise StopIteration("no more")
