"""Loss functions of torch that a step calls, with what stands in front of them in the graph of autograd."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional as F

from lightning_hooks.checks.errors import OutOfRangeError
from lightning_hooks.hooks.graph import operation_name

CROSS_ENTROPY: Final = "cross_entropy"
NLL: Final = "nll_loss"
BINARY: Final = "binary_cross_entropy"
BINARY_WITH_LOGITS: Final = "binary_cross_entropy_with_logits"
ENTROPIES: Final = (CROSS_ENTROPY, NLL, BINARY, BINARY_WITH_LOGITS)
"""The losses of classes; all others here are losses of numbers."""
_REGRESSION: Final = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
_PASSED: Final = (
    "View", "UnsafeView", "ReshapeAlias", "Transpose", "T", "Permute", "Squeeze", "Unsqueeze", "Slice", "Select", "Clone",
    "ToCopy", "Alias", "Expand", "Index", "Unbind", "Split", "Narrow", "Cat",
)  # fmt: skip
"""Operations that give the same numbers in another arrangement."""


@dataclass(frozen=True)
class LossCall:
    """One call of a loss function of torch.

    Args:
        function: its name in `torch.nn.functional`.
        input: what it was given first, without its graph.
        target: what it was given second.
        options: its other arguments by name.
        before: the operation whose result the input is, as autograd calls it without `Backward0`; empty if it has none.
        row: the module whose output that is; empty if it is the output of none.
        slope: the derivative of the loss of the step with respect to what the function returned, if that has no dimension; None
            if no backward reached it.
    """

    function: str
    input: Tensor
    target: Tensor
    options: Mapping[str, Any]
    before: str
    row: str
    slope: float | None = None

    @property
    def classes(self) -> int:
        """The number of classes, of a loss over classes."""
        return int(self.input.shape[1 if self.input.dim() > 1 else 0])

    @property
    def has_indices(self) -> bool:
        """Whether the target holds indices of classes."""
        return not (self.target.is_floating_point() or self.target.is_complex())

    def mean(self) -> float:
        """The mean loss of the elements that count, without weights and smoothing."""
        if self.function == CROSS_ENTROPY:
            ignored = self.options.get("ignore_index", -100)
            return float(F.cross_entropy(self.input.float(), self._target(), ignore_index=ignored))
        if self.function == NLL:
            return float(F.nll_loss(self.input.float(), self.target, ignore_index=self.options.get("ignore_index", -100)))
        if self.function == BINARY_WITH_LOGITS:
            return float(F.binary_cross_entropy_with_logits(self.input.float(), self.target.float()))
        return float(F.binary_cross_entropy(self.input.float(), self.target.float()))

    def _target(self) -> Tensor:
        return self.target if self.has_indices else self.target.float()

    @property
    def counted(self) -> Tensor:
        """The indices of classes that count, without those to ignore; empty if the target holds no indices."""
        if not self.has_indices or self.function not in (CROSS_ENTROPY, NLL):
            return self.target.new_empty(0)
        return self.target[self.target != self.options.get("ignore_index", -100)]

    @property
    def entropy(self) -> float:
        """The entropy of the labels that count: the loss of a model that knows no more than how often each class is."""
        shares = torch.unique(self.counted, return_counts=True)[1].double()
        shares = shares / shares.sum()
        return abs(float((shares * shares.log()).sum()))

    @property
    def chance(self) -> float:
        """The loss of a model that knows nothing: ln(classes)."""
        return math.log(self.classes) if self.function in (CROSS_ENTROPY, NLL) else math.log(2)


_OPTIONS: Final = {
    CROSS_ENTROPY: ("weight", "size_average", "ignore_index", "reduce", "reduction", "label_smoothing"),
    NLL: ("weight", "size_average", "ignore_index", "reduce", "reduction"),
    BINARY: ("weight", "size_average", "reduce", "reduction"),
    BINARY_WITH_LOGITS: ("weight", "size_average", "reduce", "reduction", "pos_weight"),
    **dict.fromkeys(_REGRESSION, ()),
}


def loss_name(function: Any) -> str:
    """The name of a loss function of torch that is known here; empty for every other function."""
    name = getattr(function, "__name__", "")
    return name if name in _OPTIONS and getattr(F, name, None) is function else ""


def arguments_of(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
    """The input, the target and the other arguments of a call of a loss function."""
    given = dict(zip(("input", "target", *_OPTIONS[name]), args, strict=False)) | dict(kwargs)
    return given.pop("input", None), given.pop("target", None), given


def refuse_labels(name: str, row: str, logits: Tensor, target: Tensor, options: Mapping[str, Any]) -> None:
    """Raise `OutOfRangeError` if a label has no output, before torch reads it."""
    if name not in (CROSS_ENTROPY, NLL) or target.is_floating_point() or not target.numel() or logits.dim() == 0:
        return
    classes = int(logits.shape[1 if logits.dim() > 1 else 0])
    ignored = options.get("ignore_index", -100)
    counted = target[target != ignored]
    if not counted.numel():
        return
    least, most = int(counted.min()), int(counted.max())
    if most >= classes:
        share = int((counted >= classes).sum())
        text = f"{share} of {counted.numel()} labels are {classes} or more, up to {most}, and the head has {classes} outputs"
        raise OutOfRangeError(row, text, most, classes)
    if least < 0:
        share = int((counted < 0).sum())
        text = f"{share} of {counted.numel()} labels are below 0, down to {least}, and are not `ignore_index` ({ignored})"
        raise OutOfRangeError(row, text, least, 0)


def refuse_tokens(row: str, indices: Any, weight: Any) -> None:
    """Raise `OutOfRangeError` if an index has no vector in an embedding, before torch reads it."""
    if not isinstance(indices, Tensor) or not isinstance(weight, Tensor) or not indices.numel() or weight.dim() != 2:
        return
    least, most, size = int(indices.min()), int(indices.max()), int(weight.shape[0])
    if most >= size:
        raise OutOfRangeError(row, f"an index is {most}, and the embedding has {size} vectors", most, size)
    if least < 0:
        raise OutOfRangeError(row, f"an index is {least}, and an embedding has no vector below 0", least, 0)


def operation_before(tensor: Tensor) -> Any:
    """The autograd node whose result a tensor is, once views and copies are passed; None if there is none."""
    node = tensor.grad_fn
    for _ in range(100):
        if node is None or operation_name(node) not in _PASSED:
            return node
        behind = [each for each, _ in node.next_functions if each is not None]
        names = {operation_name(each) for each in behind}
        if not behind or (len(behind) > 1 and len(names) > 1):
            return node
        node = behind[0]
    return node


def rows_sum_to_one(tensor: Tensor) -> bool:
    """Whether each row over the classes holds probabilities: from 0 to 1, with the sum 1."""
    if tensor.dim() < 2 or not tensor.numel():
        return False
    values = tensor.detach().float()
    is_share = bool((values >= 0).all()) and bool((values <= 1.0001).all())
    return is_share and bool(torch.isclose(values.sum(1), torch.ones((), device=values.device), atol=1e-2).all())
