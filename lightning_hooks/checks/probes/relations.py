"""Finds what relates the samples of a batch with each other on purpose: an adjacency matrix, or the edges of a graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn
from typing_extensions import override

from lightning_hooks.checks.probes.probe import Probe
from lightning_hooks.nested.tensors import tensors_in, tensors_of

_BY_INDEX: Final = {
    "__getitem__", "index_select", "gather", "scatter", "scatter_", "scatter_add", "scatter_add_", "scatter_reduce",
    "scatter_reduce_", "index_add", "index_add_",
}  # fmt: skip
"""Functions that collect rows by their numbers, or add to them."""


class Relations(Probe):
    """Looks for a constant of the samples: [n, n] for n samples, or numbers of samples by which rows are collected.

    A constant is neither a tensor of the batch nor a parameter, and the step does not compute it from these or from nothing: it
    is a buffer, or a variable of the function that trains.

    Args:
        samples: how many.

    Attributes:
        found: a clause that names the first constant; empty if there is none.
    """

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self.found = ""

    @override
    def begin(self, recorder: Any) -> None:
        super().begin(recorder)
        inside = [*tensors_of(recorder.batch), *(each.value for each in recorder.names.parameters)]
        # By the id of a tensor the tensor itself: while it is held, no other tensor gets its id.
        self._inside: dict[int, Tensor] = {id(each): each for each in inside}

    @override
    def after_function(self, name: str, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        given = list(tensors_in((args, kwargs)))
        constants = [each for each in given if id(each) not in self._inside and not each.requires_grad]
        for each in constants if not self.found else ():
            self._judge(name, each, given[0])
        if not given or len(constants) < len(given):
            self._inside |= {id(each): each for each in tensors_in(result)}

    @override
    def after_module(self, name: str, module: nn.Module, args: Any, kwargs: Mapping[str, Any], output: Any) -> None:
        """Note what a module has computed by functions that are not reported, as a recurrent layer has."""
        self._inside |= {id(each): each for each in tensors_in(output)}

    def _judge(self, name: str, constant: Tensor, first: Tensor) -> None:
        shape, count = tuple(constant.shape), self._samples
        if shape[-2:] == (count, count):
            self.found = f"a constant of shape {shape}"
        elif name in _BY_INDEX and constant is not first and first.dim() and first.shape[0] == count:
            if self._are_samples(constant):
                self.found = f"a constant of shape {shape} with the numbers of samples"

    def _are_samples(self, numbers: Tensor) -> bool:
        if numbers.dtype not in (torch.int32, torch.int64) or numbers.numel() < self._samples:
            return False
        return 0 <= int(numbers.min()) and int(numbers.max()) < self._samples
