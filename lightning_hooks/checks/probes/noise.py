"""Tells a layer that adds noise of a fixed size from a model that draws samples, as an autoencoder does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from torch import Tensor
from typing_extensions import override

from lightning_hooks.checks.probes.probe import Probe

_SOURCES: Final = {"randn", "randn_like", "normal", "rand", "rand_like"}
_SCALES: Final = {
    "mul",
    "__mul__",
    "__rmul__",
    "mul_",
    "__imul__",
    "div",
    "__truediv__",
    "div_",
    "__itruediv__",
    "to",
    "type_as",
}
_SUMS: Final = {"add", "__add__", "__radd__", "add_", "__iadd__", "sub", "__sub__", "sub_", "__isub__"}


class Noise(Probe):
    """Follows random numbers through multiplications by numbers to a sum with other numbers.

    Random numbers that are multiplied by a tensor with a graph, such as a learned deviation, are samples and no noise.

    Attributes:
        was_added: whether noise was added to a tensor.
    """

    def __init__(self) -> None:
        self.was_added = False
        # By the id of a tensor the tensor itself: while it is held, no other tensor gets its id.
        self._noise: dict[int, Tensor] = {}

    @override
    def after_function(self, name: str, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        if name in _SOURCES and isinstance(result, Tensor):
            self._noise[id(result)] = result
            return
        if name not in _SCALES | _SUMS or not any(id(each) in self._noise for each in args):
            return
        others = [each for each in args if isinstance(each, Tensor) and id(each) not in self._noise]
        if name in _SUMS:
            self.was_added = self.was_added or bool(others)
        elif isinstance(result, Tensor) and not any(each.requires_grad for each in others):
            self._noise[id(result)] = result
