"""Looks at the learning rates that optimizers have from step to step, and from batch to batch of one step."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any, ClassVar, Final

from torch import Tensor
from torch.optim import Optimizer

from lightning_hooks.engine.lookouts.surroundings import Surroundings
from lightning_hooks.engine.participants.facts import rates_of_optimizer
from lightning_hooks.engine.participants.lookout import Lookout
from lightning_hooks.engine.participants.participant import PhaseMemo
from lightning_hooks.hooks import Handles, HookSwitch, OurHook
from lightning_hooks.records.facts import Sighting

UPDATES: Final = 12
"""The number of first updates of an optimizer whose batches are looked at."""
_STEPS: Final = 96
"""The number of first steps that are looked at, where an update takes several."""
_LEAST: Final = 3
"""The number of updates for which the rate must have changed from batch to batch."""
_FEWEST: Final = 20
"""The number of looks before which no rate has fallen for long."""
_GONE: Final = 1e-3
"""The share of the largest rate to which a rate must have fallen."""
_HIGH: Final = 0.1
"""The share of the largest rate above which a rate is high."""
_MOST_HIGH: Final = 0.25
"""The largest share of the looks with a high rate of a rate that fell early. Of a cosine it is about 0.8."""
_ROUNDING: Final = 1.001
_TENTHS: Final = 10
"""The number of bins of the histogram of rates in a factor of ten."""


class FallenRateLookout(Lookout):
    """Looks whether the rates of an optimizer fell to a thousandth of their largest early in the run.

    It reads plain numbers, where the facts of a step are read.
    """

    kinds: ClassVar[tuple[str, ...]] = ("rate-fallen",)

    def __init__(self, surroundings: Surroundings) -> None:
        self._around = surroundings
        self._rates: dict[int, _Rates] = {}  # by the number of an optimizer

    def step_key(self, step: int, stage: str) -> Hashable | None:
        return None

    def sightings(self) -> tuple[Sighting, ...]:
        optimizers = self._around.optimizers()
        for number, optimizer in enumerate(optimizers):
            self._rates.setdefault(number, _Rates()).add(max(rates_of_optimizer(optimizer), default=math.nan))
        seen = (
            rates.sighting(which_of(optimizers, number)) for number, rates in self._rates.items() if number < len(optimizers)
        )
        return tuple(each for each in seen if each is not None)


class _Rates:
    """How often an optimizer had which rate, as counts of bins of a tenth of a power of ten."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._looks = 0
        self._largest = self._now = 0.0
        self._told: Sighting | None = None

    def add(self, rate: float) -> None:
        if math.isnan(rate):
            return
        self._looks, self._now = self._looks + 1, rate
        self._largest = max(self._largest, rate)
        if rate > 0:
            self._counts[math.floor(_TENTHS * math.log10(rate))] += 1

    def sighting(self, which: str) -> Sighting | None:
        """That the rate has fallen early; the same object as long as it holds, so that the facts do not change."""
        if not 0 < self._now <= _ROUNDING * _GONE * self._largest or self._looks < _FEWEST:
            self._told = None
            return None
        bound = math.floor(_TENTHS * math.log10(_HIGH * self._largest))
        high = sum(count for exponent, count in self._counts.items() if exponent >= bound)
        if high > _MOST_HIGH * self._looks:
            self._told = None
        elif self._told is None:
            text = (
                f"the learning rate of {which} has fallen from {self._largest:.3g} to {self._now:.3g}, and was above a tenth "
                f"of its largest in the first {high} of {self._looks} steps that were looked at"
            )
            share = self._now / self._largest
            self._told = Sighting("rate-fallen", text, is_fact=False, measured=share, threshold=_GONE)
        return self._told


class BatchRateLookout(Lookout):
    """Looks whether rates change between the batches that are added up for one step of an optimizer.

    The rates are read where the gradient of a parameter arrives, which is once for each batch.
    """

    kinds: ClassVar[tuple[str, ...]] = ("rate-each-batch",)
    reads_updates = True

    def __init__(self, surroundings: Surroundings) -> None:
        self._around = surroundings
        self._steps = self._updates = 0
        self._arrived: dict[int, list[tuple[float, ...]]] = {}  # since the last update: the rates by the id of an optimizer
        self._changed: dict[int, list[list[tuple[float, ...]]]] = {}  # of updates between whose batches they changed

    def step_key(self, step: int, stage: str) -> Hashable | None:
        return "rates" if stage == "train" and self._steps < _STEPS and self._updates < UPDATES else None

    def begin_step(self, step: int, stage: str, reporting: bool) -> None:
        self._steps += 1

    def register(self, key: Any, switch: HookSwitch, handles: Handles) -> None:
        for number, parameters in self._around.parameters():
            if parameters:
                handles.register(parameters[-1].register_hook, _Arrival(self, number, switch))

    def arrived(self, number: int) -> None:
        """Called when a gradient arrives at a parameter of the optimizer with this number."""
        optimizers = self._around.optimizers()
        if number < len(optimizers):
            rates = tuple(rates_of_optimizer(optimizers[number]))
            self._arrived.setdefault(id(optimizers[number]), []).append(rates)

    def after_update(self, optimizer: Optimizer, memo: PhaseMemo) -> None:
        self._updates += 1
        rates = self._arrived.pop(id(optimizer), [])
        if 1 < len(rates) == len(set(rates)):
            self._changed.setdefault(id(optimizer), []).append(rates)

    def left(self) -> None:
        self._arrived.clear()

    def sightings(self) -> tuple[Sighting, ...]:
        optimizers = self._around.optimizers()
        changed = [self._changed.get(id(each), []) for each in optimizers]
        return tuple(
            self._sighting(which_of(optimizers, number), updates[0])
            for number, updates in enumerate(changed)
            if len(updates) >= _LEAST
        )

    def _sighting(self, which: str, rates: Sequence[tuple[float, ...]]) -> Sighting:
        first, last = max(rates[0]), max(rates[-1])
        text = (
            f"the learning rate of {which} changes after each of the {len(rates)} batches of one step, as from {first:.3g} to "
            f"{last:.3g}: a schedule that was made for steps ends {len(rates)} times too early"
        )
        return Sighting("rate-each-batch", text, is_fact=False)


class _Arrival(OurHook):
    """A hook on the gradient of a parameter, which it only notes."""

    def __init__(self, lookout: BatchRateLookout, number: int, switch: HookSwitch) -> None:
        self.switch = switch
        self._lookout, self._number = lookout, number

    def __call__(self, gradient: Tensor) -> None:
        if self.switch.is_on:
            self._lookout.arrived(self._number)


def which_of(optimizers: Sequence[Any], number: int) -> str:
    """How a sentence calls one of the optimizers."""
    return f"optimizer {number} ({type(optimizers[number]).__name__})" if len(optimizers) > 1 else "the optimizer"


LOOKOUTS: Final[tuple[type[Lookout], ...]] = (FallenRateLookout, BatchRateLookout)
"""The lookouts of this file."""
