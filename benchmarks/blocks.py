"""Which step runs in which mode: blocks of steps, so that modes are compared within one fit.

Whole runs of the same code differ by some percent on a shared machine; neighbouring blocks hardly do. In each round every mode
has one block, and every other round runs in the reverse order, so that a drift of the machine favours none.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

OFF = "off"


@dataclass(frozen=True)
class Layout:
    """The blocks of a run.

    Args:
        modes: their names; the first is what the others are compared with.
        rounds: how often each mode has a block.
        length: steps that count in a block.
        warmup: steps before them that do not count; at least 2, in which hooks come and go.
        lead: steps before the first block, in which memory is allocated for the first time.
    """

    modes: tuple[str, ...]
    rounds: int
    length: int
    warmup: int = 2
    lead: int = 3

    @property
    def block(self) -> int:
        """Steps of a block, those that do not count too."""
        return self.warmup + self.length

    @property
    def steps(self) -> int:
        """Steps of the whole run; one more, whose beginning ends the last."""
        return self.lead + self.rounds * len(self.modes) * self.block + 1

    def mode_at(self, step: int) -> str:
        """The mode of a step.

        Example:
            >>> layout = Layout(("off", "on"), rounds=2, length=1, warmup=2, lead=0)
            >>> [layout.mode_at(step) for step in (0, 3, 6, 9)]
            ['off', 'on', 'on', 'off']
        """
        index = (step - self.lead) // self.block
        if step < self.lead or index >= self.rounds * len(self.modes):
            return self.modes[0]
        turn, position = divmod(index, len(self.modes))
        return self.modes[position if turn % 2 == 0 else len(self.modes) - 1 - position]

    def index_in_block(self, step: int) -> int:
        """How many steps of its block came before a step; -1 outside the blocks."""
        if step < self.lead or step >= self.steps - 1:
            return -1
        return (step - self.lead) % self.block

    def round_of(self, step: int) -> int:
        """The round of a step."""
        return (step - self.lead) // (self.block * len(self.modes))


@dataclass(frozen=True)
class Ratio:
    """How much longer a step takes in a mode.

    Args:
        median: over rounds, of the median step of the mode's block over that of the first mode's.
        low: the lower end of the bootstrapped 95 % interval of that median.
        high: its upper end.
        quartiles: of the rounds.
        of_means: the same median with the mean step of each block, which holds what happens only now and then.
        extra_ms: median over rounds of the difference of median steps.
    """

    median: float
    low: float
    high: float
    quartiles: tuple[float, float]
    of_means: float
    extra_ms: float


def compare(times: Sequence[Sequence[float]], base: Sequence[Sequence[float]], draws: int = 2000) -> Ratio:
    """Compare the blocks of a mode with those of the first one, round by round.

    Args:
        times: seconds of the steps that count, by round.
        base: the same of the first mode.
        draws: of the bootstrap.

    Example:
        >>> compare([[2.0, 2.0], [2.2, 2.2]], [[1.0, 1.0], [1.1, 1.1]]).median
        2.0
    """
    pairs = list(zip(times, base, strict=True))
    ratios = np.array([statistics.median(a) / statistics.median(b) for a, b in pairs])
    means = [statistics.fmean(a) / statistics.fmean(b) for a, b in pairs]
    extra = [statistics.median(a) - statistics.median(b) for a, b in pairs]
    drawn = np.random.default_rng(0).choice(ratios, (draws, len(ratios)))
    low, high = np.quantile(np.median(drawn, axis=1), [0.025, 0.975])
    first, third = np.quantile(ratios, [0.25, 0.75])
    return Ratio(
        median=float(np.median(ratios)),
        low=float(low),
        high=float(high),
        quartiles=(float(first), float(third)),
        of_means=statistics.median(means),
        extra_ms=statistics.median(extra) * 1e3,
    )
