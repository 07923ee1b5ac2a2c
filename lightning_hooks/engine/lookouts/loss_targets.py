"""The targets that a loss was computed from: the autograd graph of the loss holds them."""

from __future__ import annotations

from collections import deque
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from lightning_hooks.engine.lookouts.fingerprints import can_copy

_CLASSES: Final = frozenset({"NllLossBackward0", "NllLoss2DBackward0"})
_NUMBERS: Final = frozenset(
    f"{name}Backward0"
    for name in ("MseLoss", "SmoothL1Loss", "HuberLoss", "BinaryCrossEntropy", "BinaryCrossEntropyWithLogits")
)
_MOST_NODES: Final = 64
_FAR: Final = 1 << 62
"""A number beyond those of all classes."""


class LossTarget(NamedTuple):
    """A target of a loss.

    Args:
        tensor: the target.
        ignored: the class that does not count; None if the targets are no classes.
    """

    tensor: Tensor
    ignored: int | None

    @torch.no_grad()
    def range(self) -> Tensor:
        """How many of the targets count, the smallest and the largest of these: float64 [3], on their device."""
        target = self.tensor.detach()
        if self.ignored is None:
            return torch.stack([target.new_full((), target.numel(), dtype=torch.float64), *target.double().aminmax()])
        target = target.long()
        counts = target != self.ignored
        low, high = torch.where(counts, target, _FAR).amin(), torch.where(counts, target, -_FAR).amax()
        return torch.stack([counts.sum(), low, high]).double()


def targets_of(loss: Tensor) -> list[LossTarget]:
    """The targets near the end of the graph of a loss, in the order of a walk from the loss.

    Example:
        >>> logits = torch.zeros(2, 3, requires_grad=True)
        >>> loss = 0.5 * torch.nn.functional.cross_entropy(logits, torch.tensor([1, -100]))
        >>> [(each.tensor.tolist(), each.ignored, each.range().tolist()) for each in targets_of(loss)]
        [([1, -100], -100, [1.0, 1.0, 1.0])]
    """
    found: list[LossTarget] = []
    waiting: deque[Any] = deque([loss.grad_fn] if loss.grad_fn is not None else [])
    seen: set[Any] = set(waiting)
    for _ in range(_MOST_NODES):
        if not waiting:
            break
        node = waiting.popleft()
        name = node.name()
        if name in _CLASSES or name in _NUMBERS:
            target = _saved_target(node)
            if target is not None and target.numel():
                found.append(LossTarget(target, _signed(node._saved_ignore_index) if name in _CLASSES else None))
            continue
        following = [each for each, _ in node.next_functions if each is not None and each not in seen]
        seen.update(following)
        waiting.extend(following)
    return found


def _saved_target(node: Any) -> Tensor | None:
    """The target that a node has saved; None if hooks of saved tensors would run, or elements cannot be copied."""
    try:
        # Unpacking a tensor that was saved under hooks runs code: that of an offload, or the forward pass of a checkpoint.
        if node._raw_saved_target.unpack_hook is not None:
            return None
        target = node._saved_target
    # The backward pass has freed the tensor, or this version of torch does not tell about hooks.
    except (RuntimeError, AttributeError):
        return None
    return target if isinstance(target, Tensor) and can_copy(target) and not target.is_complex() else None


def _signed(number: int) -> int:
    """A number that autograd shows without its sign."""
    return number - (1 << 64) if number >= 1 << 63 else number
