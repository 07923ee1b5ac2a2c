"""Places: tensors on a device through which operations in compiled code find the rows that they write.

An operation in a CUDA graph has the same arguments in every replay. So what changes from step to step, whether a tensor is
measured and where its numbers go, is in a tensor: the address of a row, or 0 for none, and the number of measurements since the
place was set.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch._dynamo
from torch import Tensor


class Places:
    """The places of several tensors of modules, which are set together.

    Example:
        >>> places = Places()
        >>> place = places.add(torch.device("cpu"), lambda: 4096)
        >>> places.set(places.rows()); place.tolist()
        [4096, 0]
        >>> places.clear(); place.tolist()
        [0, 0]
    """

    def __init__(self) -> None:
        self._places: list[Tensor] = []
        self._row_of: list[Callable[[], int | None]] = []
        self._set: tuple[int, ...] = ()
        self._numbers: dict[tuple[int, ...], list[Tensor]] = {}  # on the device, by the rows

    def __len__(self) -> int:
        return len(self._places)

    def add(self, device: torch.device, row: Callable[[], int | None]) -> Tensor:
        """A new place, without a row.

        Args:
            device: of the place and of the rows.
            row: returns the address of the row in the current step, 0 for none, and None if operations may not write the row.
        """
        # A tensor of its own, and no view: the compiler treats views of one tensor, of which some are changed, as one.
        place = torch.zeros(2, dtype=torch.int64, device=device)
        # CUDA graphs may rely on the address. Without a guard, equal blocks share one compiled graph.
        torch._dynamo.mark_static_address(place, guard=False)
        self._places.append(place)
        self._row_of.append(row)
        self._set = (*self._set, 0)
        self._numbers.clear()
        return place

    def rows(self) -> tuple[int, ...] | None:
        """The addresses of the rows in the current step; None if operations may not write one of them."""
        rows = []
        for row_of in self._row_of:
            row = row_of()
            if row is None:
                return None
            rows.append(row)
        return tuple(rows)

    def set(self, rows: tuple[int, ...] | None) -> None:
        """Set all places, without waiting for the device, if they are not set so already. None stands for no rows."""
        rows = (0,) * len(self._places) if rows is None else rows
        if rows == self._set:
            return
        numbers = self._numbers.get(rows)
        if numbers is None:
            host = torch.tensor([[row, 0] for row in rows], dtype=torch.int64, device="cpu")
            device = self._places[0].device
            on_device = host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host
            numbers = self._numbers[rows] = list(on_device.unbind())
        # A graph saves places for its backward. Writing through `data` does not count as a change of what was saved.
        torch._foreach_copy_([place.data for place in self._places], numbers)
        self._set = rows

    def clear(self) -> None:
        """Set all places to no rows."""
        self.set(None)
