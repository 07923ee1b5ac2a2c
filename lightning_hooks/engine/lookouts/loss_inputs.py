"""Looks for probabilities where a loss takes logits or logarithms of probabilities, and for logits where it takes others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Final

from lightning_hooks.engine.lookouts.loss_graph import LossGraphLookout, arranged
from lightning_hooks.engine.participants.lookout import Lookout
from lightning_hooks.hooks.graph import operation_name, saved_shape, shape_of
from lightning_hooks.records.facts import Sighting

KIND: Final = "activation-before-loss"
_NODES: Final = 60
"""The number of operations that are followed from a loss."""
_WEIGHING: Final = frozenset(
    {"Mean", "Sum", "Mul", "Div", "Neg", "Add", "Sub", "Stack", "Unbind", "Select", "Index", "MaskedSelect", "MaskedFill"}
    | {"Where", "View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze", "ToCopy", "Clone", "Expand", "Cat", "Gather"}
)
"""The operations between a loss and its terms: they add terms up and weigh them."""
_PROBABILITIES: Final = {"Softmax": "a softmax", "Sigmoid": "a sigmoid"}
_LIMITING: Final = {"Relu": ("a ReLU", "no logit can be below 0"), "Tanh": ("a tanh", "no logit can be above 1")}
_LAYERS: Final = frozenset({"Addmm", "Mm", "Bmm", "Linear", "Convolution"})


class LossInputsLookout(LossGraphLookout):
    """Looks which operation stands in front of a loss of classes, in the graph of the loss."""

    kinds: ClassVar[tuple[str, ...]] = (KIND,)

    def look(self, loss: Any) -> Iterator[Sighting]:
        waiting, known = [loss], {loss}
        for _ in range(_NODES):
            if not waiting:
                return
            node = waiting.pop(0)
            operation = operation_name(node)
            if operation.startswith("NllLoss"):
                yield from _of_classes(_before(node))
                yield from _over_wrong_dimension(node.next_functions[0][0], 1, "`nll_loss`", is_fact=True)
            elif operation == "LogSoftmax":
                yield from _of_logits("log_softmax", "a softmax", _before(node))
            elif operation == "BinaryCrossEntropyWithLogits":
                yield from _of_logits("binary_cross_entropy_with_logits", "a sigmoid", _before(node))
            elif operation == "Sub" and (given := _of_divergence(node)):
                yield _told(f"{given} stands in front of `kl_div`, which takes logarithms of probabilities first")
            elif operation in _WEIGHING:
                if operation == "Gather":
                    picked = getattr(node, "_saved_dim", None)
                    yield from _over_wrong_dimension(node.next_functions[0][0], picked, "`gather`", is_fact=False)
                behind = [each for each, _ in node.next_functions if each is not None and each not in known]
                known.update(behind)
                waiting += behind


def _before(node: Any) -> Any:
    """The operation that has made the first argument of another one, behind those that only arrange numbers."""
    return arranged(node.next_functions[0][0]) if node.next_functions else None


def _of_classes(given: Any) -> Iterator[Sighting]:
    """What there is to say of a negative log-likelihood, by what it is given."""
    operation = operation_name(given)
    if operation == "LogSoftmax":
        yield from _of_logits("cross_entropy", "a softmax", _before(given))
    elif operation in _PROBABILITIES:
        what = _PROBABILITIES[operation]
        yield _told(f"{what} stands in front of `nll_loss`, which takes logarithms of probabilities")
    elif operation in _LAYERS:
        yield _told("`nll_loss` gets the output of a layer as it is, and takes logarithms of probabilities")


def _of_logits(function: str, own: str, given: Any) -> Iterator[Sighting]:
    """What there is to say of a function that takes logits.

    Args:
        function: its name.
        own: what it applies itself.
        given: the node of what it is given.
    """
    operation = operation_name(given)
    if operation in _PROBABILITIES:
        yield _told(f"{_PROBABILITIES[operation]} stands in front of `{function}`, which applies {own} itself")
    elif operation in _LIMITING:
        what, follows = _LIMITING[operation]
        yield _told(f"{what} stands in front of `{function}`, so that {follows}", is_fact=False)


def _over_wrong_dimension(given: Any, picked: int | None, function: str, *, is_fact: bool) -> Iterator[Sighting]:
    """What there is to say of the logarithm of a softmax over another dimension than that of the classes.

    Args:
        given: the node of what the loss is given.
        picked: the dimension in which the loss picks the class of the label.
        function: that picks it.
        is_fact: whether another dimension is never right.
    """
    normed, shape = getattr(given, "_saved_dim", None), shape_of(given) if given is not None else None
    if operation_name(given) != "LogSoftmax" or not shape or len(shape) < 2 or normed is None or picked is None:
        return
    # Autograd shows a negative dimension as an integer without a sign.
    normed, picked = ((each - 2**64 if each >= 2**63 else each) % len(shape) for each in (normed, picked))
    if normed != picked:
        classes = f"{function} picks the class of each label along dimension {picked}"
        yield _told(f"the softmax of the loss goes over dimension {normed}, and {classes}", is_fact=is_fact)


def _of_divergence(node: Any) -> str:
    """What `kl_div` is given in the place of logarithms: it subtracts input times target from what only the target makes."""
    (constant, _), (product, _) = node.next_functions[:2]
    if constant is not None or operation_name(product) != "Mul":
        return ""
    for position, (given, number) in enumerate(product.next_functions):
        target = ("other", "self")[position]
        if given is not None and product.next_functions[1 - position][0] is None:
            is_target = saved_shape(product, target) in (None, shape_of(given, number))
            return _PROBABILITIES.get(operation_name(arranged(given)), "") if is_target else ""
    return ""


def _told(text: str, *, is_fact: bool = True) -> Sighting:
    return Sighting(KIND, text, is_fact=is_fact)


LOOKOUTS: Final[tuple[type[Lookout], ...]] = (LossInputsLookout,)
"""The lookouts of this file."""
