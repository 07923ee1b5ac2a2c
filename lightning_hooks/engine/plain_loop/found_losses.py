"""Finds the loss of a plain loop: the tensor whose backward pass reaches the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final
from weakref import WeakMethod, ref

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from lightning_hooks.hooks import Handles, Listening
from lightning_hooks.hooks.graph import leaves_of, operation_name
from lightning_hooks.tensor_kinds import is_sharded

_MOST_BATCHES: Final = 4096
"""The largest number that a loss is divided by for an accumulation of batches."""


class FoundLosses:
    """Listens to `backward` in the thread that entered the block, and to the loss scaler for what it scales.

    A loss is measured before its backward pass. One that is divided by a whole number waits for the end of its step: if the
    step had as many backward passes, it accumulates batches, and the loss of a batch is the one before the division. It waits
    too if the loop notes its losses after their backward passes. `note_loss` takes the place of all that wait.

    Args:
        model: the root module.
        is_open: returns whether a step is under way in which losses are asked for.
        show: called with each loss and its graph.
        measure: called with what is measured.

    Attributes:
        waits: whether all losses wait for the end of their step.
    """

    def __init__(
        self,
        model: nn.Module,
        is_open: Callable[[], bool],
        show: Callable[[Tensor], None],
        measure: Callable[[Tensor], None],
    ) -> None:
        self.waits = False
        self._model = ref(model)
        self._is_open, self._show, self._measure = is_open, show, measure
        self._unscaled = WeakTensorKeyDictionary()  # by what the loss scaler has returned, what it was given
        self._parameters = WeakTensorKeyDictionary()  # the parameters of the model, each with True
        self._is_sharded = False
        self._waiting: list[tuple[Tensor, int]] = []  # Each loss has the number by which it was divided.
        self._found = 0  # the backward passes of the step that reached the model
        self._is_noted = False  # whether the loop has noted a loss in this step
        self._last = ""  # whether the last loss that was shown was noted or found; empty if it was both

    def register(self, handles: Handles) -> None:
        """Listen until the handles are closed."""
        backward = Listening(torch.autograd, "backward", _Weakly(self._before_backward))
        scale = _Weakly(self._before_scale)
        for listening in (backward, *(Listening(each, "scale", scale) for each in _scalers(torch.amp.GradScaler))):
            handles.keep(listening)
            listening.start()

    def noted(self, loss: Tensor) -> None:
        """Called when the loop itself notes a loss, which is measured in the place of those that were found."""
        # The loop notes after the backward pass: from the next step on wait for that.
        self.waits = self.waits or self._found > 0
        self._is_noted = True
        self._waiting.clear()
        if self._last == "found":
            self._last = ""
        elif loss.grad_fn is not None:
            self._last = "noted"
            self._show(loss)

    def settle(self) -> None:
        """Measure the losses that wait for the end of their step, and begin the next step."""
        waiting, found = self._waiting, self._found
        self.forget()
        accumulates = found > 1 and len(waiting) == found and all(divisor == found for _, divisor in waiting)
        for loss, divisor in waiting:
            self._measure(loss * divisor if accumulates else loss)

    def forget(self) -> None:
        """Drop the losses of the step under way: it begins again, or the block is over."""
        self._waiting, self._found, self._is_noted, self._last = [], 0, False, ""

    def _before_scale(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Callable[[Any], None] | None:
        given = args[1] if len(args) > 1 else kwargs.get("outputs")
        if not isinstance(given, Tensor) or not self._is_open():
            return None

        def after(scaled: Any) -> None:
            if isinstance(scaled, Tensor) and scaled is not given:
                self._unscaled[scaled] = given

        return after

    def _before_backward(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if not self._is_open():
            return
        given = args[0] if args else kwargs.get("tensors")
        weights = args[1] if len(args) > 1 else kwargs.get("grad_tensors")
        inputs = args[5] if len(args) > 5 else kwargs.get("inputs")
        tensors = [given] if isinstance(given, Tensor) else list(given) if isinstance(given, (list, tuple)) else []
        if weights is not None or not tensors or not all(map(_is_loss, tensors)) or not self._reaches(tensors, inputs):
            return
        losses = [self._unscaled.get(each, each) for each in tensors]
        self._found += 1
        if self._last == "noted":
            self._last = ""
        else:
            self._last = "found"
            for loss in losses:
                self._show(loss)
        if self._is_noted:
            return
        with torch.no_grad():
            loss = losses[0].detach() if len(losses) == 1 else torch.stack([each.detach().sum() for each in losses]).sum()
        divisor = divisor_of(losses[0]) if len(losses) == 1 else 1
        if self.waits or divisor > 1:
            self._waiting.append((loss.clone(), divisor))
        else:
            self._measure(loss)

    def _reaches(self, losses: Iterable[Tensor], inputs: Any) -> bool:
        """Whether a backward pass computes the gradient of a parameter of the model."""
        given = [inputs] if isinstance(inputs, Tensor) else inputs
        if any(map(self._is_parameter, leaves_of(losses) if given is None else given)):
            return True
        # A parameter may be new, or have been replaced.
        return self._looks_up() and any(map(self._is_parameter, leaves_of(losses) if given is None else given))

    def _is_parameter(self, leaf: Any) -> bool:
        # The leaf of a sharded parameter is the gathered one, which only the sharding knows.
        return leaf in self._parameters or self._is_sharded

    def _looks_up(self) -> bool:
        """Look the parameters of the model up. Returns whether there is a new one."""
        model = self._model()
        new = [each for each in (() if model is None else model.parameters()) if each not in self._parameters]
        for parameter in new:
            self._parameters[parameter] = True
            self._is_sharded = self._is_sharded or is_sharded(parameter)
        return bool(new)


class _Weakly:
    """Calls a method as long as its object is there: a function of torch is not to keep a block alive that was lost."""

    def __init__(self, method: Any) -> None:
        self._method = WeakMethod(method)

    def __call__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Callable[[Any], None] | None:
        method = self._method()
        return None if method is None else method(args, kwargs)


def _is_loss(tensor: object) -> bool:
    return isinstance(tensor, Tensor) and tensor.grad_fn is not None and tensor.numel() == 1


def divisor_of(loss: Tensor) -> int:
    """The whole number by which the last operation divides a loss; 1 for another operation. It reads no number of a device."""
    node: Any = loss.grad_fn
    operation = operation_name(node)
    other = getattr(node, "_saved_other", None) if operation in ("Div", "Mul") else None
    if not isinstance(other, Tensor) or other.dim() or other.device.type != "cpu" or other.is_complex():
        return 1
    number = float(other.detach())
    divisor = number if operation == "Div" else 1 / number if number else 1.0
    return round(divisor) if 1 < divisor <= _MOST_BATCHES and abs(divisor - round(divisor)) < 1e-6 * divisor else 1


def _scalers(kind: type[Any]) -> list[type[Any]]:
    """The class of loss scalers with those that inherit from it, as far as they have a method `scale` of their own."""
    own = [kind] if "scale" in vars(kind) else []
    return own + [each for sub in kind.__subclasses__() for each in _scalers(sub)]
