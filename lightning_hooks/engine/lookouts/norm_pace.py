"""Looks at the pace of running statistics: norms that take so little of each batch that they keep what they began with."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from typing import ClassVar, Final, NamedTuple
from weakref import ref

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _NormBase

from lightning_hooks.engine.lookouts.surroundings import Surroundings
from lightning_hooks.engine.lookouts.writes import writes_of
from lightning_hooks.engine.participants.lookout import Lookout
from lightning_hooks.records.facts import Sighting
from lightning_hooks.rules.patterns import named_modules
from lightning_hooks.stats.host_copy import HostCopy, begin_copy

_SLOW, _FAST = 0.05, 0.9
"""A share of each batch below which running statistics are slow, and one from which on they are those of the last batch."""
_LOOKS: Final = (1, 3, 10)
"""The numbers of the first steps, from the first one on, at which slow norms are looked at."""
_LEAST: Final = 10
"""The number of batches after which distances are told."""
_EVERY: Final = 25
"""Steps between two looks after these."""
_FAR_MEAN, _FAR_VARIANCE = 0.5, math.log(2)
"""Standard deviations between a running mean and that of the batches, and the logarithm of a quotient of variances."""
SLOW, FAST = "norm-statistics-slow", "norm-statistics-of-one-batch"


class _Taken(NamedTuple):
    """The statistics of a norm at a look, on its device, and the number of writes to its number of batches."""

    mean: Tensor
    variance: Tensor
    batches: int


class _Slow:
    """A norm that takes little of each batch into its statistics.

    Args:
        name: of the norm.
        norm: the module, which is known weakly.
    """

    def __init__(self, name: str, norm: _NormBase) -> None:
        self.name, self.momentum = name, float(norm.momentum or 0.0)
        self._norm = ref(norm)
        self._last = self._begin = _taken(norm)
        # The statistics with which a norm is created, as no data has given it any.
        self._is_fresh = begin_copy((self._begin.mean.eq(0).all() & self._begin.variance.eq(1).all()).reshape(1))
        self._measured: tuple[HostCopy, int] | None = None  # and the number of batches until then
        self._numbers: tuple[float, ...] = ()
        self._batches = 0  # of the numbers

    def look(self) -> None:
        """Measure what the batches since the last look have had, and read what has arrived."""
        norm = self._norm()
        if norm is None or norm.momentum != self.momentum or not isinstance(norm.num_batches_tracked, Tensor):
            self._numbers = ()
            return
        self._read()
        now, last = _taken(norm), self._last
        if self._measured is None and now.batches > last.batches:
            distances = _distances(last, now, self._left(now.batches - last.batches))
            self._measured, self._last = (begin_copy(distances), now.batches - self._begin.batches), now
            self._read()

    def _read(self) -> None:
        if self._measured is not None and (self._measured[0].ready or self._measured[0].has_arrived):
            self._numbers, self._batches = tuple(self._measured[0].wait().tolist()), self._measured[1]
            self._measured = None

    def _left(self, batches: int) -> float:
        """The share of earlier statistics that is left after so many batches."""
        return (1 - self.momentum) ** batches

    def sighting(self) -> Sighting | None:
        """What is wrong with the norm by the numbers that have arrived."""
        is_fresh = (self._is_fresh.ready or self._is_fresh.has_arrived) and bool(self._is_fresh.wait()[0])
        if not is_fresh or not self._numbers:
            return None
        mean, variance, moved = self._numbers
        if not self.momentum:
            text = "the running statistics of this norm never move (momentum=0): evaluation uses mean 0 and variance 1"
            return None if moved else Sighting(SLOW, text, (self.name,))
        if self._batches < _LEAST or (mean < _FAR_MEAN and abs(variance) < _FAR_VARIANCE):
            return None
        left = self._left(self._batches)
        text = (
            f"the running statistics of this norm take {100 * self.momentum:.3g} % of each batch (momentum={self.momentum:g}); "
            f"after {self._batches} of them, they are to {100 * left:.0f} % still mean 0 and variance 1, and from those of the "
            f"batches {mean:.2g} standard deviations and a factor of {math.exp(abs(variance)):.2g} in variance away"
        )
        return Sighting(SLOW, text, (self.name,), measured=1 - self.momentum)


class NormPaceLookout(Lookout):
    """Looks at norms whose running statistics take very little, or nearly all, of each batch.

    What the batches have had follows from the running statistics at two looks and the share that each batch has; it is computed
    on their device and read at the next look. Norms that began with statistics of data are left out.
    """

    kinds: ClassVar[tuple[str, ...]] = (SLOW, FAST)

    def __init__(self, surroundings: Surroundings) -> None:
        self._around = surroundings
        self._first: int | None = None  # step
        self._slow: list[_Slow] = []
        self._fast: dict[str, float] = {}

    def step_key(self, step: int, stage: str) -> Hashable | None:
        if stage != "train" or (self._first is not None and not self._slow):
            return None
        since = step - (step if self._first is None else self._first)
        return "norm pace" if since == 0 or since in _LOOKS or since % _EVERY == 0 else None

    def begin_step(self, step: int, stage: str, reporting: bool) -> None:
        if self._first is None:
            self._first = step
            for name, norm, momentum in self._norms():
                if momentum < _SLOW:
                    self._slow.append(_Slow(name, norm))
                elif momentum >= _FAST:
                    self._fast[name] = momentum
            return
        for each in self._slow:
            each.look()

    def left(self) -> None:
        self._slow = []

    def _norms(self) -> Iterator[tuple[str, _NormBase, float]]:
        """The norms in training mode that keep running statistics, each with the share that a batch has in them."""
        model = self._around.model()
        for target in [] if model is None else named_modules(model):
            norm = target.value
            if isinstance(norm, _NormBase) and isinstance(norm.num_batches_tracked, Tensor) and norm.training:
                if norm.momentum is not None and type(norm.running_mean) is Tensor:
                    yield target.name, norm, norm.momentum

    def sightings(self) -> tuple[Sighting, ...]:
        slow = tuple(sighting for each in self._slow if (sighting := each.sighting()) is not None)
        return slow + tuple(
            Sighting(FAST, _of_one_batch(momentum), tuple(name for name, own in self._fast.items() if own == momentum))
            for momentum in dict.fromkeys(self._fast.values())
        )


def _of_one_batch(momentum: float) -> str:
    return f"the running statistics of this norm are to {100 * momentum:.3g} % those of the last batch (momentum={momentum:g})"


def _taken(norm: _NormBase) -> _Taken:
    mean, variance, counter = norm.running_mean, norm.running_var, norm.num_batches_tracked
    assert mean is not None and variance is not None and counter is not None
    return _Taken(mean.detach().float().clone(), variance.detach().float().clone(), writes_of(counter)[1])


def _distances(last: _Taken, now: _Taken, left: float) -> Tensor:
    """How far the statistics of now are from those of the batches since the last look, and whether they have moved.

    Args:
        last: of the look before.
        now: of this look.
        left: the share of the statistics of then in those of now; 1 if norms take nothing of a batch.

    Returns:
        The root mean square over channels of the distance of the means in standard deviations, the mean logarithm of the
        quotient of the variances, and 1 if anything has moved; float32 [3].
    """
    taken = max(1 - left, 1e-12)
    mean = (now.mean - left * last.mean) / taken
    variance = ((now.variance - left * last.variance) / taken).clamp(min=1e-12)
    moved = (now.mean != last.mean).any() | (now.variance != last.variance).any()
    apart = ((now.mean - mean).square() / variance).mean().sqrt()
    return torch.stack([apart, (now.variance / variance).log().mean(), moved.float()])


LOOKOUTS: Final[tuple[type[Lookout], ...]] = (NormPaceLookout,)
"""The lookouts of this file."""
