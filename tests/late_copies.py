"""Stands in for copies from a device that are read later, where there is no device."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

SEAMS = (
    "lightning_hooks.stats.table.begin_copy",
    "lightning_hooks.stats.table.InHostMemory",
    "lightning_hooks.engine.watching.producer.begin_copy",
)


class LateCopy:
    """A copy that holds what was there when it was asked for, and is not `ready`.

    Args:
        tensor: to copy; an array where one is used in place.
        view: of no use here.
    """

    ready = False
    has_arrived = True
    log: ClassVar[list[str]] = []

    def __init__(self, tensor: Any) -> None:
        self._copy = tensor.detach().clone() if isinstance(tensor, Tensor) else torch.from_numpy(tensor.copy())
        self.log.append("begin")

    def wait(self) -> Any:
        """The copy."""
        self.log.append("wait")
        return self._copy.numpy()


def install(patch: Any) -> list[str]:
    """Make every copy of a table late.

    Args:
        patch: pytest's `monkeypatch`.

    Returns:
        What is done with the copies, in order, from now on: `begin` and `wait`.
    """
    LateCopy.log.clear()
    for seam in SEAMS:
        patch.setattr(seam, LateCopy)
    return LateCopy.log
