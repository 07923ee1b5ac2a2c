"""A base for probes that compute gradients from outputs to inputs while a step runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from lightning_hooks.checks.batch import is_float
from lightning_hooks.checks.losses import arguments_of, loss_name
from lightning_hooks.checks.probes.probe import Probe
from lightning_hooks.engine.participants.facts import role_of
from lightning_hooks.nested.tensors import tensors_in


class GraphProbe(Probe):
    """Gets each output with a graph, and the vectors of each embedding.

    Args:
        every_output: whether it gets the outputs of modules within modules too.
    """

    def __init__(self, *, every_output: bool = False) -> None:
        self._every_output = every_output

    def on_output(self, name: str, output: Tensor) -> None:
        """Called with each tensor that a module returns or, with an empty name, that a loss function reads."""
        raise NotImplementedError

    def on_embedding(self, indices: Tensor, vectors: Tensor) -> None:
        """Called with the indices and the vectors of each embedding."""

    @override
    def after_module(self, name: str, module: nn.Module, args: Any, kwargs: Mapping[str, Any], output: Any) -> None:
        if (self._every_output or not self.recorder.depth) and role_of(module) != "loss":
            for tensor in tensors_in(output):
                if is_float(tensor) and tensor.requires_grad:
                    self.on_output(name, tensor)

    @override
    def before_function(self, name: str, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        loss = loss_name(function)
        if loss:
            logits, target, _ = arguments_of(loss, args, kwargs)
            if isinstance(logits, Tensor) and isinstance(target, Tensor) and logits.requires_grad:
                self.on_output("", logits)

    @override
    def after_function(self, name: str, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        if function is F.embedding and result.requires_grad:
            self.on_embedding(args[0] if args else kwargs["input"], result)
