"""What a training really does, measured without the package: which operations give the first bad numbers, and where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch import Callback
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def is_bad(tensor: Any) -> bool:
    """Whether a tensor of floating point has an element that is not finite."""
    return isinstance(tensor, Tensor) and tensor.is_floating_point() and not bool(tensor.isfinite().all())


@dataclass(frozen=True)
class Birth:
    """An operation that gave NaN or infinity from tensors that were finite, −∞ of a mask apart.

    Args:
        operation: its name, such as `aten.log`.
        node: the autograd node that ran it; empty outside backward.
        module: the dotted name of the module whose operation it is.
        call: the number of the call of that module in its batch.
        batch: the number of the batch.
    """

    operation: str
    node: str
    module: str
    call: int
    batch: int


class Witness(Callback):
    """Keeps the births of bad numbers, and the batches in which the loss, a gradient or a parameter is bad."""

    def __init__(self) -> None:
        self.births: list[Birth] = []
        self.bad: dict[str, int] = {}
        """The first batch in which a loss, a gradient or a parameter is bad, by name."""
        self._mode = _Mode(self)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        for name, module in pl_module.named_modules():
            if name:
                module.register_forward_pre_hook(lambda *_, name=name: self._mode.enter(name))
                module.register_forward_hook(lambda *_, name=name: self._mode.leave())

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._look("weights", pl_module.parameters(), batch_idx)
        self._mode.begin(batch_idx)
        self._mode.__enter__()

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Tensor) -> None:
        self._look("loss", [loss], self._mode.batch)

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        self._look("grad", [parameter.grad for parameter in pl_module.parameters()], self._mode.batch)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        self._mode.__exit__(None, None, None)
        self._look("param", pl_module.parameters(), self._mode.batch)

    def on_exception(self, *_: Any) -> None:
        self._mode.__exit__(None, None, None)

    def _look(self, name: str, tensors: Any, batch: int) -> None:
        if name not in self.bad and any(is_bad(tensor) for tensor in tensors if tensor is not None):
            self.bad[name] = batch


class _Mode(TorchDispatchMode):
    def __init__(self, witness: Witness) -> None:
        super().__init__()
        self.witness = witness
        self.begin(0)

    def begin(self, batch: int) -> None:
        self.batch = batch
        self.calls: dict[str, int] = {}
        self.stack: list[tuple[str, int]] = []
        self.spans: list[tuple[int, int, str, int]] = []
        self.starts: list[int] = []

    def enter(self, name: str) -> None:
        self.stack.append((name, self.calls.get(name, 0)))
        self.calls[name] = self.calls.get(name, 0) + 1
        self.starts.append(torch._C._autograd._get_sequence_nr())

    def leave(self) -> None:
        (name, call), start = self.stack.pop(), self.starts.pop()
        self.spans.append((start, torch._C._autograd._get_sequence_nr(), name, call))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        read = [leaf for leaf in tree_leaves((args, kwargs)) if is_bad(leaf)]
        result = func(*args, **kwargs)
        made = [leaf for leaf in tree_leaves(result) if is_bad(leaf)]
        # NaN that is made of the −∞ of a mask is a birth too.
        if made and (not read or (_are_masks(read) and any(bool(leaf.isnan().any()) for leaf in made))):
            self.witness.births.append(self._birth(str(func.overloadpacket)))
        return result

    def _birth(self, operation: str) -> Birth:
        node = torch._C._current_autograd_node()
        module, call = self.stack[-1] if self.stack else ("", 0)
        if node is not None and not self.stack:
            number = node._sequence_nr()
            holders = [span for span in self.spans if span[0] <= number < span[1]]
            module, call = min(holders, key=lambda span: span[1] - span[0])[2:] if holders else ("", 0)
        return Birth(operation, node.name() if node is not None else "", module, call, self.batch)


def _are_masks(tensors: list[Tensor]) -> bool:
    return not any(bool((tensor.isnan() | tensor.isposinf()).any()) for tensor in tensors)
