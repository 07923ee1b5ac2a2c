"""The array of a tensor, made once as long as it is the same tensor: most steps write into the state of the one before."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


class ArrayView:
    """Gives the memory of a tensor as an array; copies and pickles begin anew, since their tensors lie elsewhere.

    Example:
        >>> import torch
        >>> view, tensor = ArrayView(), torch.zeros(2, dtype=torch.float64)
        >>> view.of(tensor)[0] = 1.0
        >>> view.of(tensor) is view.of(tensor), tensor.tolist()
        (True, [1.0, 0.0])
    """

    __slots__ = ("_array", "_tensor")

    def __init__(self) -> None:
        self._tensor: Tensor | None = None
        self._array: NDArray[np.float64] = np.empty(0)

    def of(self, tensor: Tensor) -> NDArray[np.float64]:
        """The array of a tensor.

        Args:
            tensor: in the memory of this machine, without a graph.
        """
        if tensor is not self._tensor:
            self._tensor, self._array = tensor, tensor.numpy()
        return self._array

    def __reduce__(self) -> tuple[type[ArrayView], tuple[()]]:
        return (ArrayView, ())
