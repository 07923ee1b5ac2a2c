"""A module that several tests use: its layer gets an argument that has no gradient."""

from __future__ import annotations

from torch import Tensor, nn


class Power(nn.Module):
    def forward(self, x: Tensor, exponent: int) -> Tensor:
        return x**exponent


class Squares(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.power = Power()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.power(x, 2)
        return y
