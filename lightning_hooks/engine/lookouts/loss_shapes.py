"""Looks for two sides of a loss whose shapes do not fit, so that each sample meets every other one."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any, ClassVar, Final, NamedTuple

from lightning_hooks.engine.lookouts.loss_graph import LossGraphLookout, terms_of
from lightning_hooks.engine.participants.lookout import Lookout
from lightning_hooks.hooks.graph import Shape, operation_name, saved_shape, shape_of
from lightning_hooks.records.facts import Sighting

KIND: Final = "each-with-each"
_NODES: Final = 14
"""The number of operations between the two sides and the mean or sum over all elements that are followed."""
_COMBINING: Final = {
    "Sub": "a difference", "Mul": "a product", "Add": "a sum", "Div": "a quotient", "Minimum": "a minimum",
    "Maximum": "a maximum", "MseLoss": "a squared error", "SmoothL1Loss": "an error", "HuberLoss": "an error",
}  # fmt: skip
"""The operations that combine two tensors element by element, and what the result is called."""
_ELEMENTWISE: Final = frozenset(
    {
        "Pow",
        "Abs",
        "Cosh",
        "Neg",
        "Log",
        "Log1P",
        "Sqrt",
        "Clamp",
        "Where",
        "Relu",
        "Softplus",
        "LogSigmoid",
        "Sigmoid",
        "Tanh",
        "Rsub",
    }
    | {"MaskedFill", "ToCopy", "Clone", *_COMBINING}
)
"""The operations that take each element by itself, between the two sides and the mean. An exponential is a kernel of pairs."""
_REDUCING: Final = frozenset({"Sum", "Mean", "Logsumexp", "Max", "Min", "Amax", "Amin", "Var", "Std", "LinalgVectorNorm"})
_ON_PURPOSE: Final = _REDUCING | {"Unsqueeze", "T", "Transpose", "AccumulateGrad"}
"""What gives a column to whoever wants to compare all pairs, or a weight that is no prediction."""
_RESHAPING: Final = frozenset({"View", "UnsafeView", "ReshapeAlias"})
"""What may give a column on purpose, beside a row."""


class _Side(NamedTuple):
    """One side of an operation.

    Args:
        shape: of the tensor before it was expanded; None if it is not known.
        node: that has made it; None for a tensor without a graph.
    """

    shape: Shape | None
    node: Any


class LossShapesLookout(LossGraphLookout):
    """Looks for [n, 1] beside [n], which gives [n, n], before the mean or the sum that makes a loss of it.

    Whoever compares all pairs on purpose arranges them: [n, 1] beside [1, n], or a column by `unsqueeze`, `view` or `None`.
    What is reduced over one dimension first, such as an attention or the logits of a contrastive loss, is not looked at.
    """

    kinds: ClassVar[tuple[str, ...]] = (KIND,)

    def look(self, loss: Any) -> Iterator[Sighting]:
        for term in terms_of(loss, _is_number):
            if operation_name(term) in _COMBINING:
                yield from _sightings(term, _first_shape(term))
            elif operation_name(term) in ("Mean", "Sum"):
                behind, number = term.next_functions[0]
                if behind is not None:
                    yield from _in_elements(behind, shape_of(behind, number))


def _is_number(node: Any, number: int) -> bool:
    shape = shape_of(node, number)
    return shape is not None and prod(shape) == 1


def _first_shape(node: Any) -> Shape | None:
    """The shape of the elements of an error whose mean an operation takes itself."""
    shapes = [shape_of(behind, number) for behind, number in node.next_functions if behind is not None]
    return shapes[0] if shapes else None


def _in_elements(node: Any, shape: Shape | None) -> Iterator[Sighting]:
    """What there is to say of the operations on the elements of a loss that have this shape."""
    if shape is None or len(shape) < 2 or shape[0] != shape[1] or shape[0] < 2:
        return
    waiting, known = [node], {node}
    for _ in range(_NODES):
        if not waiting:
            return
        node = waiting.pop(0)
        if operation_name(node) not in _ELEMENTWISE:
            continue
        yield from _sightings(node, shape)
        for behind, number in node.next_functions:
            if behind is not None and behind not in known and shape_of(behind, number) == shape:
                known.add(behind)
                waiting.append(behind)


def _sightings(node: Any, shape: Shape | None) -> Iterator[Sighting]:
    """What there is to say of one operation whose elements have this shape."""
    what = _COMBINING.get(operation_name(node))
    if what is None or shape is None or len(shape) < 2 or shape[0] != shape[1] or shape[0] < 2 or len(node.next_functions) < 2:
        return
    sides = [_side(node, position, shape) for position in (0, 1)]
    for side, other in (sides, sides[::-1]):
        if side.node is not None and _does_not_fit(operation_name(node), side, other, shape):
            beside = "a tensor of another shape" if other.shape is None else _shown(other.shape)
            shapes = f"has the shape {_shown(shape)}, because {_shown(side.shape or ())} meets {beside}"
            text = f"{what} in the loss {shapes}: each sample is compared with all others"
            yield Sighting(KIND, text, measured=float(prod(shape)), threshold=float(prod(shape) // shape[0]))
            return


def _side(node: Any, position: int, shape: Shape) -> _Side:
    behind, number = node.next_functions[position]
    if behind is None:
        # A product saves one side for the gradient of the other.
        return _Side(saved_shape(node, ("self", "other")[position]) if operation_name(node) == "Mul" else None, None)
    if operation_name(behind) == "Expand" and shape_of(behind, number) == shape:
        behind, number = behind.next_functions[0]
    return _Side(None if behind is None else shape_of(behind, number), behind)


def _does_not_fit(operation: str, side: _Side, other: _Side, shape: Shape) -> bool:
    column, flat = (shape[0], 1, *shape[2:]), shape[1:]
    if side.shape == column:
        made_by = _maker(side.node)
        if made_by in _ON_PURPOSE:
            return False
        is_unknown = other.shape is None and other.node is None
        return other.shape == flat or (is_unknown and made_by not in _RESHAPING)
    if side.shape == flat and other.shape is None and other.node is None:
        # A sum of an output and a constant of all pairs, such as the logarithm of a mask, is usual.
        return operation not in ("Add", "Mul") and not _is_over_samples(side.node)
    return side.shape == flat and other.shape == column and other.node is None and not _is_over_samples(side.node)


def _maker(node: Any) -> str:
    """The operation that has made a tensor: `x[:, None]` may end with a slice of everything."""
    while operation_name(node) in ("Slice", "Clone", "ToCopy", "Alias") and node.next_functions[0][0] is not None:
        node = node.next_functions[0][0]
    return operation_name(node)


def _is_over_samples(node: Any) -> bool:
    """Whether a tensor holds no number for each sample: it is a weight, or was reduced over the samples."""
    return operation_name(node) in ("AccumulateGrad", "") or (
        operation_name(node) in _REDUCING and 0 in tuple(getattr(node, "_saved_dim", ()) or ())
    )


def _shown(shape: Shape) -> str:
    return f"[{', '.join(map(str, shape))}]"


LOOKOUTS: Final[tuple[type[Lookout], ...]] = (LossShapesLookout,)
"""The lookouts of this file."""
