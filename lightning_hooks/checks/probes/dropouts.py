"""Probe of dropouts, with what those before them on the same path have kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from torch import Tensor, nn
from typing_extensions import override

from lightning_hooks.checks.probes.functions import DROPOUTS, drops
from lightning_hooks.checks.probes.probe import Probe
from lightning_hooks.checks.record import Dropout
from lightning_hooks.hooks.graph import operation_name

_MOST_OPERATIONS: Final = 200
"""The number of operations behind a dropout among which the one before it is searched."""


class Dropouts(Probe):
    """The calls of dropouts of elements, by functions, modules and arguments of recurrent layers."""

    field: ClassVar[str] = "dropouts"

    @override
    def begin(self, recorder: Any) -> None:
        super().begin(recorder)
        self._calls: list[Dropout] = []
        self._by_node: dict[Any, Dropout] = {}
        recorder.record.dropouts = self._calls

    @override
    def after_function(self, name: str, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        if name not in DROPOUTS or not isinstance(result, Tensor) or not drops(args, kwargs):
            return
        given = dict(zip(("input", "p"), args, strict=False)) | dict(kwargs)
        rate, (before, has_layer) = float(given.get("p", 0.5)), self._before(given["input"].grad_fn)
        kept, count = (1.0, 0) if before is None else (before.kept, before.count)
        kept *= 1 - rate
        is_joined = before is not None and not has_layer
        if before is not None and is_joined:
            rate = 1 - (1 - rate) * (1 - before.rate)
        module = self.recorder.module
        row = "" if module is None else self.recorder.names.of(module)
        call = Dropout(row, rate, kept, count + 1, not given["input"].requires_grad, is_joined)
        self._calls.append(call)
        if result.grad_fn is not None:
            self._by_node[result.grad_fn] = call

    @override
    def before_module(self, name: str, module: nn.Module, args: Any) -> None:
        """Note the dropout within a recurrent or an attention module, which calls no function that is reported."""
        has_dropout = isinstance(module, nn.MultiheadAttention) or (isinstance(module, nn.RNNBase) and module.num_layers > 1)
        rate = float(getattr(module, "dropout", 0.0)) if has_dropout and module.training else 0.0
        if rate > 0:
            self._calls.append(Dropout(name, rate, 1 - rate, 1, is_of_input=False))

    def _before(self, node: Any) -> tuple[Dropout | None, bool]:
        """The last dropout on the only path to an operation, and whether a parameter is used between them."""
        has_layer = False
        for _ in range(_MOST_OPERATIONS):
            if node is None or node in self._by_node:
                return self._by_node.get(node), has_layer
            inputs = [each for each, _ in node.next_functions if each is not None]
            behind = [each for each in inputs if not _is_of_parameter(each)]
            if len(behind) != 1:
                break
            has_layer = has_layer or len(inputs) > 1
            node = behind[0]
        return None, has_layer


def _is_of_parameter(node: Any) -> bool:
    """Whether an operation gives a parameter, as it is or transposed."""
    while node is not None and operation_name(node) in ("T", "Transpose", "Permute", "View"):
        node = node.next_functions[0][0]
    return type(node).__name__ == "AccumulateGrad"
