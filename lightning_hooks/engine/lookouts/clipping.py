"""Looks whether gradients are clipped between the backward pass and the step, where alone clipping limits the step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import inf, isfinite, nan
from typing import Any, ClassVar, Final, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils import clip_grad
from torch.optim import Optimizer

from lightning_hooks.engine.lookouts.arrivals import LEAST, ArrivalLookout, State, line_here, weakly
from lightning_hooks.engine.lookouts.surroundings import Surroundings
from lightning_hooks.engine.participants.lookout import Lookout
from lightning_hooks.hooks import Listening, cell_of
from lightning_hooks.records.facts import Sighting
from lightning_hooks.stats.host_copy import HostCopy, begin_copy

_FUNCTIONS: Final = {"clip_grad_norm_": "max_norm", "clip_grad_value_": "clip_value"}
"""The functions of `torch.nn.utils`, each with its argument that is the limit."""
_MEASURES: Final = 1e5
"""A limit from which on a call only measures: `clip_grad_norm_(parameters, inf)` returns the norm."""
_BEFORE, _BEHIND = "before the backward pass of the step", "after the step"


class _Call(NamedTuple):
    """A call that clips.

    Args:
        function: its name.
        limit: NaN if it is on a device, where it is not read.
        line: of the user's code.
        parameters: those whose gradients it is to clip.
    """

    function: str
    limit: float
    line: str
    parameters: list[Tensor]


class _Gradient:
    """What is known of the gradient of one parameter since its optimizer stepped.

    Attributes:
        has_arrived: whether a gradient has arrived.
        is_clipped: whether a call has found one there.
        early: the call that has found none.
        used: the state of a gradient that a step has used unclipped.
        late: the call that clips that one, and its state then.
    """

    __slots__ = ("early", "has_arrived", "is_clipped", "late", "used")

    def __init__(self, used: State | None = None) -> None:
        self.has_arrived = self.is_clipped = False
        self.early: _Call | None = None
        self.used = used
        self.late: tuple[_Call, State, HostCopy | None] | None = None


class _Seen:
    """What was seen of one optimizer and one function.

    Args:
        call: the first call.
    """

    def __init__(self, call: _Call) -> None:
        self.call = call
        self.last: _Call | None = None
        self.steps = 0
        self.sizes: list[HostCopy | None] = []  # of the gradients that were used


class ClippingLookout(ArrivalLookout):
    """Looks whether the functions of torch that clip gradients find the ones that the next step uses.

    A call is too early if no gradient has arrived since the last step, and the step then uses gradients that no call has found.
    It is too late if it finds gradients that a step has used unclipped, and that do not stay for the next one. A call whose
    limit no gradient reaches only measures. Norms are measured where a call is misplaced, and read when they are there.
    """

    kinds: ClassVar[tuple[str, ...]] = ("clipping-misplaced",)

    def __init__(self, surroundings: Surroundings) -> None:
        super().__init__(surroundings)
        self._gradients: dict[int, _Gradient] = {}
        self._seen: dict[tuple[int, str, str], _Seen] = {}  # The key is an optimizer, a function and a place.

    def calls(self) -> Iterable[Listening]:
        for name, listener in (("clip_grad_norm_", self._before_norm), ("clip_grad_value_", self._before_value)):
            for owner, attribute in _places_of(name):
                yield Listening(owner, attribute, weakly(listener), reads_iterators=True)

    def _before_norm(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Callable[[Any], None] | None:
        return self._before(_call_of("clip_grad_norm_", args, kwargs))

    def _before_value(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Callable[[Any], None] | None:
        return self._before(_call_of("clip_grad_value_", args, kwargs))

    def _before(self, call: _Call) -> Callable[[Any], None] | None:
        if not self._finds_used(call):
            return None
        size = _size_of(call)
        return lambda result: self._clipped(call, size)

    def arrives(self, parameter: Tensor, number: int) -> None:
        gradient = self._gradients.setdefault(id(parameter), _Gradient())
        late, gradient.late, gradient.used = gradient.late, None, None
        # What is clipped after a step and kept for the next one is in the sum that the next step uses.
        if late is not None and not (parameter.grad is not None and late[1].is_that_of(parameter.grad)):
            self._note(number, _BEHIND, late[0], late[2])
        gradient.has_arrived = True

    def _finds_used(self, call: _Call) -> bool:
        """Note a call that is to clip. Returns whether it finds gradients that a step has used unclipped."""
        if call.limit >= _MEASURES:
            return False
        is_late = False
        for parameter in call.parameters:
            gradient = self._gradients.get(id(parameter))
            if gradient is None and id(parameter) in self.of:
                gradient = self._gradients[id(parameter)] = _Gradient()
            if gradient is None:
                continue
            if gradient.has_arrived:
                gradient.is_clipped = True
            elif gradient.used is not None and parameter.grad is not None and gradient.used.is_that_of(parameter.grad):
                is_late = True
            else:
                gradient.early = gradient.early or call
        return is_late

    def _clipped(self, call: _Call, size: HostCopy | None) -> None:
        """Note that gradients were clipped which a step had used.

        Args:
            call: the call.
            size: of the gradients before.
        """
        for parameter in call.parameters:
            gradient = self._gradients.get(id(parameter))
            if gradient is not None and gradient.used is not None and not gradient.has_arrived and gradient.late is None:
                gradient.late = call, State(parameter.grad), size

    def stepped(self, parameters: list[Tensor], optimizer: Optimizer, number: int) -> None:
        known = [(each, gradient) for each in parameters if (gradient := self._gradients.get(id(each))) is not None]
        waiting = [gradient for _, gradient in known if gradient.has_arrived]
        self.made[number] = self.made.get(number, 0) + bool(waiting)
        calls = [each.early for each in waiting if each.early is not None]
        if calls and not any(each.is_clipped for each in waiting):
            self._note(number, _BEFORE, calls[0], _size_of(calls[0]))
        for parameter, gradient in known:
            is_open = gradient.has_arrived and not gradient.is_clipped and gradient.early is None
            self._gradients[id(parameter)] = _Gradient(State(parameter.grad) if is_open else None)

    def _note(self, number: int, place: str, call: _Call, size: HostCopy | None) -> None:
        seen = self._seen.setdefault((number, call.function, place), _Seen(call))
        # Several parameters of one optimizer tell of one call.
        if seen.last is not call:
            seen.last = call
            seen.steps += 1
            seen.sizes.append(size)

    def left(self) -> None:
        super().left()
        self._gradients.clear()

    def sightings(self) -> tuple[Sighting, ...]:
        return tuple(self._sighting(*key, seen) for key, seen in self._seen.items() if seen.steps >= LEAST)

    def _sighting(self, number: int, function: str, place: str, seen: _Seen) -> Sighting:
        limit = seen.call.limit
        sizes = [size for copy in seen.sizes if copy is not None and copy.has_arrived and isfinite(size := float(copy.wait()))]
        text = f"`{function}` runs {place} at {seen.steps} of {self.made[number]} steps, and limits none of them"
        if sizes and isfinite(limit):
            what = "norm" if function == "clip_grad_norm_" else "largest gradient"
            above = f"{sum(size > limit for size in sizes)} of {len(sizes)}"
            text += f"; the {what} that was used was up to {max(sizes):.3g}, at {above} above the limit of {limit:.3g}"
        return Sighting(self.kinds[0], text, self.rows(number), seen.call.line, measured=seen.steps, threshold=LEAST)


def _call_of(function: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> _Call:
    given = args[0] if args else kwargs.get("parameters")
    limit = args[1] if len(args) > 1 else kwargs.get(_FUNCTIONS[function])
    parameters = [given] if isinstance(given, Tensor) else given if isinstance(given, Iterable) else []
    return _Call(function, _number(limit), line_here(), [each for each in parameters if isinstance(each, Tensor)])


def _number(limit: Any) -> float:
    """A limit; NaN if it is on a device, where it is not read."""
    if isinstance(limit, Tensor) and limit.device.type != "cpu":
        return nan
    try:
        return float(limit)
    except (TypeError, ValueError, RuntimeError):
        return nan


@torch.no_grad()
def _size_of(call: _Call) -> HostCopy | None:
    """The norm of the gradients that a call is to clip, or the largest; None if this process does not hold all of them."""
    gradients = [each.grad for each in call.parameters if each.grad is not None]
    is_whole = all(type(each) is Tensor and each.layout is torch.strided for each in gradients)
    if not gradients or not is_whole or _has_other_ranks() or len({each.device for each in gradients}) > 1:
        return None
    order = 2.0 if call.function == "clip_grad_norm_" else inf
    norms = [torch.linalg.vector_norm(each, order, dtype=torch.float32) for each in gradients]
    return begin_copy(torch.linalg.vector_norm(torch.stack(norms), order))


def _has_other_ranks() -> bool:
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def _places_of(name: str) -> list[tuple[Any, str]]:
    """Where calls of a function are heard: inside its decorator, or under both of its names."""
    inside = cell_of(getattr(clip_grad, name, None))
    if inside is not None:
        return [inside]
    return [(owner, name) for owner in (clip_grad, torch.nn.utils) if hasattr(owner, name)]


LOOKOUTS: Final[tuple[type[Lookout], ...]] = (ClippingLookout,)
"""The lookouts of this file."""
