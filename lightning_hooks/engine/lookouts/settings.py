"""Looks at the settings of optimizers: betas the other way round, and an eps that is 0 in the format of the weights."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any, ClassVar, Final

import torch
from torch import Tensor
from torch.optim import Optimizer

from lightning_hooks.engine.lookouts.rates import which_of
from lightning_hooks.engine.lookouts.surroundings import Surroundings
from lightning_hooks.engine.participants.lookout import Lookout
from lightning_hooks.engine.participants.participant import PhaseMemo
from lightning_hooks.records.facts import Sighting
from lightning_hooks.stats.host_copy import HostCopy, begin_copy

_WITH_BETAS: Final = ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "SparseAdam")
"""The optimizers of torch whose first beta is of the gradients, and whose second one is of their squares."""
_WITH_EPS: Final = ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "RMSprop", "Adagrad", "Adadelta")
"""The optimizers of torch that add eps to what they divide by, in the format of their state."""
_SQUARES: Final = ("exp_avg_sq", "square_avg", "sum", "exp_inf")
"""The names of what they divide by, in their state."""
_TIMES: Final = 10.0
"""If the mean of gradients is over so many times more steps than that of their squares, the betas are the other way round."""
_MOST: Final = 16
"""The number of weights of a group whose state is looked at."""


class BetasLookout(Lookout):
    """Looks whether the first beta of Adam is larger than the second one."""

    kinds: ClassVar[tuple[str, ...]] = ("betas-swapped",)

    def __init__(self, surroundings: Surroundings) -> None:
        self._around = surroundings

    def step_key(self, step: int, stage: str) -> Hashable | None:
        return None

    def sightings(self) -> tuple[Sighting, ...]:
        optimizers = self._around.optimizers()
        found = {
            (number, betas)
            for number, optimizer in enumerate(optimizers)
            for group in (optimizer.param_groups if _is_of_torch(optimizer, _WITH_BETAS) else ())
            if (betas := _betas(group)) is not None and betas[0] > betas[1]
        }
        return tuple(_of_betas(which_of(optimizers, number), *betas) for number, betas in sorted(found))


def _betas(group: Mapping[str, Any]) -> tuple[float, float] | None:
    """The two betas of a group, as far as the host knows them."""
    betas = group.get("betas")
    if isinstance(betas, (tuple, list)) and len(betas) == 2 and all(isinstance(each, (int, float)) for each in betas):
        return float(betas[0]), float(betas[1])
    return None


def _of_betas(which: str, first: float, second: float) -> Sighting:
    times = (1 - second) / (1 - first) if first < 1 else float("inf")
    text = (
        f"the betas of {which} are ({first:.4g}, {second:.4g}): the first one, of the gradients, is larger than the second "
        f"one, of their squares; (0.9, 0.999) is usual"
    )
    return Sighting("betas-swapped", text, is_fact=times >= _TIMES, measured=times, threshold=_TIMES)


class EpsilonLookout(Lookout):
    """Looks whether eps is 0 in the format of the weights, so that an optimizer divides by 0.

    The format says so at once. What share of the squared gradients is 0 is counted on the device after the first update, and
    read at a later step, when the number has arrived.
    """

    kinds: ClassVar[tuple[str, ...]] = ("epsilon-zero",)
    reads_updates = True

    def __init__(self, surroundings: Surroundings) -> None:
        self._around = surroundings
        self._zeros: dict[int, tuple[int, HostCopy]] = {}  # by the id of an optimizer: elements looked at, and zeros of them
        self._asked: set[int] = set()
        self._has_looked = False
        self._found: dict[int, dict[str, Any]] | None = None

    def step_key(self, step: int, stage: str) -> Hashable | None:
        return "epsilon" if stage == "train" and not self._has_looked and self._groups() else None

    def _groups(self) -> dict[int, dict[str, Any]]:
        """By the id of an optimizer, its first group whose eps vanishes. They are looked up once: formats do not change."""
        if self._found is None and (optimizers := self._around.optimizers()):
            first = {id(each): next(_vanishing(each), None) for each in optimizers}
            self._found = {key: group for key, group in first.items() if group is not None}
        return self._found or {}

    def after_update(self, optimizer: Optimizer, memo: PhaseMemo) -> None:
        if id(optimizer) in self._asked:
            self._has_looked = True
            return
        self._asked.add(id(optimizer))
        squares = [
            square
            for group in _vanishing(optimizer)
            for parameter in group["params"][:_MOST]
            if (square := _square(optimizer, parameter)) is not None and square.device.type in ("cpu", "cuda")
        ]
        devices = {square.device for square in squares}
        if len(devices) == 1:
            with torch.no_grad():
                zeros = torch.stack([(square == 0).sum() for square in squares]).sum(0, keepdim=True)
            self._zeros[id(optimizer)] = sum(square.numel() for square in squares), begin_copy(zeros)

    def left(self) -> None:
        self._zeros.clear()
        self._found = {}

    def sightings(self) -> tuple[Sighting, ...]:
        optimizers = self._around.optimizers()
        return tuple(
            self._sighting(which_of(optimizers, number), optimizer, group)
            for number, optimizer in enumerate(optimizers)
            if (group := self._groups().get(id(optimizer))) is not None
        )

    def _sighting(self, which: str, optimizer: Optimizer, group: Mapping[str, Any]) -> Sighting:
        held = [each for each in group["params"] if _is_half(each)]
        names = self._around.names()
        text = (
            f"the eps of {which}, {group['eps']:.3g}, is 0 in float16, the format of its weights and its state, so that it "
            f"divides by 0 where squared gradients are 0{self._share(optimizer)}"
        )
        return Sighting("epsilon-zero", text, tuple(names[id(each)] for each in held[:1] if id(each) in names))

    def _share(self, optimizer: Optimizer) -> str:
        count, zeros = self._zeros.get(id(optimizer), (0, None))
        if zeros is None or not count or not zeros.has_arrived:
            return ""
        return f", as {100 * float(zeros.wait()[0]) / count:.3g} % of them are after the first update"


def _vanishing(optimizer: Optimizer) -> Iterator[dict[str, Any]]:
    """The groups with weights in float16 and an eps that is 0 there. A fused kernel computes in float32."""
    for group in optimizer.param_groups if _is_of_torch(optimizer, _WITH_EPS) else ():
        eps = group.get("eps")
        if isinstance(eps, float) and not group.get("fused") and any(map(_is_half, group["params"])) and _is_zero(eps):
            yield group


def _is_half(parameter: Tensor) -> bool:
    return parameter.requires_grad and parameter.dtype == torch.float16


def _is_zero(eps: float) -> bool:
    return eps <= torch.finfo(torch.float16).smallest_normal * torch.finfo(torch.float16).eps / 2


def _square(optimizer: Optimizer, parameter: Tensor) -> Tensor | None:
    """What an optimizer divides the step of a weight in float16 by, before it adds eps."""
    state = optimizer.state.get(parameter, {}) if _is_half(parameter) else {}
    return next((state[name] for name in _SQUARES if isinstance(state.get(name), Tensor)), None)


def _is_of_torch(optimizer: Any, names: tuple[str, ...]) -> bool:
    """Whether torch defines the class. A class of others may compute in another format, or give betas another meaning."""
    return type(optimizer).__name__ in names and type(optimizer).__module__.startswith("torch.optim.")


LOOKOUTS: Final[tuple[type[Lookout], ...]] = (BetasLookout, EpsilonLookout)
"""The lookouts of this file."""
