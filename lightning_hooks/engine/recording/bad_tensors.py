"""What is not finite after a step: its loss, a gradient, a parameter or the state of an optimizer, and where that came from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_hooks.engine.recording.origins import Leaf, Origin, OriginMap
from lightning_hooks.engine.recording.summaries import range_of, summary
from lightning_hooks.nested.tensors import named_tensors
from lightning_hooks.recorder.record import TensorSummary


@dataclass(frozen=True)
class BadTensor:
    """The first tensor that is not finite.

    Args:
        kind: `loss`, `grad`, `param`, `buffer` or `state.KEY`.
        name: the dotted name of the parameter; empty for the loss.
        origin: of the bad numbers; None if it is not known.
        result: its numbers; None if the tensor is gone.
        count: how many tensors of this kind are not finite.
        total: the number of tensors of this kind.
    """

    kind: str
    name: str
    origin: Origin | None
    result: TensorSummary | None
    count: int = 1
    total: int = 1

    @property
    def shown(self) -> str:
        """In words, such as `grad of layer.weight`."""
        return f"{self.kind} of {self.name}" if self.name else self.kind


class CheckedTensors:
    """The parameters, gradients, buffers and optimizer state that must stay finite.

    Args:
        model: its parameters and buffers.
        optimizers: only gradients of their parameters count, and their state; if empty, gradients of all parameters count.
    """

    def __init__(self, model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
        held = {param for optimizer in optimizers for group in optimizer.param_groups for param in group["params"]}
        self._model, self._optimizers = model, optimizers
        self._updated = [(name, each) for name, each in model.named_parameters() if not optimizers or each in held]
        self._names: dict[Tensor, str] = {each: name for name, each in model.named_parameters()}

    def tensors(self) -> Iterator[tuple[str, str, Tensor]]:
        """The kind, the name and the tensor of each parameter, gradient, buffer and entry of state."""
        yield from (("param", name, each) for name, each in self._model.named_parameters())
        yield from (("grad", name, each.grad) for name, each in self._updated if each.grad is not None)
        yield from (("buffer", name, each) for name, each in self._model.named_buffers())
        yield from self._state()

    def bad_gradients(self, origins: OriginMap) -> BadTensor | None:
        with_gradient = [("grad", name, each.grad) for name, each in self._updated if each.grad is not None]
        return _earliest(with_gradient, origins)

    def bad_parameters(self, origins: OriginMap) -> BadTensor | None:
        return _earliest([("param", name, each) for name, each in self._model.named_parameters()], origins)

    def bad_state(self, origins: OriginMap) -> BadTensor | None:
        return _earliest(list(self._state()), origins)

    def _state(self) -> Iterator[tuple[str, str, Tensor]]:
        for optimizer in self._optimizers:
            for param, state in optimizer.state.items():
                values = state.items() if isinstance(state, dict) else ()
                tensors = [(key, each) for key, each in values if isinstance(each, Tensor)]
                yield from ((f"state.{key}", self._names.get(param, ""), each) for key, each in tensors)


def note_bad_leaves(checked: CheckedTensors, batch: object, origins: OriginMap) -> list[Leaf]:
    """Note the tensors that are not finite when a step begins.

    Returns:
        Those among them that are not masks.
    """
    leaves: list[Leaf] = []
    of_batch = (("batch", name, each) for name, each in named_tensors(batch))
    for kind, name, tensor in [*checked.tensors(), *of_batch]:
        if _is_bad(tensor):
            numbers = summary(name, tensor)
            # Negative orders: these tensors were bad before the first operator ran.
            leaf = Leaf(kind, name, numbers.nan > 0, _is_mask(kind, numbers), len(leaves) - 1_000_000, numbers)
            leaves.append(leaf)
            origins.write(tensor, leaf)
    return [leaf for leaf in leaves if not leaf.is_intended]


def bad_loss(loss: Tensor | None, bad_roots: Sequence[Origin | None], origins: OriginMap) -> BadTensor | None:
    """The loss of a step, or else the tensor from which a backward pass began, if it is not finite."""
    if loss is not None and _is_bad(loss):
        return BadTensor("loss", "", origins.origin_of(loss), summary("loss", loss))
    return BadTensor("loss", "", bad_roots[0], None) if bad_roots else None


def _earliest(tensors: Sequence[tuple[str, str, Tensor]], origins: OriginMap) -> BadTensor | None:
    """The bad tensor whose origin is the earliest."""
    bad = [(kind, name, each, origins.origin_of(each)) for kind, name, each in tensors if _is_bad(each)]
    if not bad:
        return None
    known = [entry for entry in bad if entry[3] is not None]
    kind, name, tensor, origin = min(known, key=lambda entry: entry[3].order if entry[3] else 0) if known else bad[0]
    return BadTensor(kind, name, origin, summary(name, tensor), len(bad), len(tensors))


def _is_bad(tensor: Tensor) -> bool:
    extent = range_of(tensor)
    return extent is not None and not extent.is_finite


def _is_mask(kind: str, numbers: TensorSummary) -> bool:
    """Whether the infinities of a tensor are meant: −Inf in a buffer, and −Inf beside zeros only in a batch."""
    if numbers.nan or numbers.positive_infinite or kind not in ("buffer", "batch"):
        return False
    return kind == "buffer" or numbers.abs_max in (None, 0.0)
