"""Rules on batches that come again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from lightning_hooks.health.early_losses import EarlyLosses
from lightning_hooks.health.evidence import Evidence
from lightning_hooks.health.roles import Array
from lightning_hooks.health.rule import HealthRule, Severity, Symptom
from lightning_hooks.health.rules.base import Obstacles, no_loss
from lightning_hooks.health.sighted import sightings_in
from lightning_hooks.health.witness import error_of, noise_of


@dataclass(frozen=True, kw_only=True)
class WorkersRepeat(HealthRule):
    """Each batch comes as often as the loader has workers, because each of them reads the whole stream.

    A few elements of each batch are compared with those of the batches before, in the first 4,096 batches.
    """

    patience: int = 1
    every_n_steps: int = 5
    family: ClassVar[str] = "facts"
    looks_for: ClassVar[tuple[str, ...]] = ("workers-repeat",)
    next_steps: ClassVar[tuple[str, ...]] = (
        "In `__iter__` of the IterableDataset, let each worker read its own part: see `torch.utils.data.get_worker_info`.",
    )
    source: ClassVar[str] = "a definition; three batches must have come as often as there are workers"
    consequence: ClassVar[str] = (
        "Each sample is trained on as often as there are workers, so that an epoch costs a multiple of its time and the model "
        "overfits."
    )
    false_alarm: ClassVar[str] = (
        "Data that really hold equal batches at this distance look the same. Three batches must have repeated before it is "
        "told."
    )


@dataclass(frozen=True, kw_only=True)
class EpochsRepeat(HealthRule):
    """The loader shuffles, and yet the same batches come again in the same order.

    The random numbers of each epoch are the same. A few elements of each batch are compared, in the first 4,096 batches.
    """

    patience: int = 1
    every_n_steps: int = 5
    family: ClassVar[str] = "facts"
    looks_for: ClassVar[tuple[str, ...]] = ("epochs-repeat",)
    next_steps: ClassVar[tuple[str, ...]] = (
        "Seed NumPy in `worker_init_fn` with `torch.initial_seed() % 2**32`, which differs from epoch to epoch, or not at all.",
        "Call `set_epoch` of a DistributedSampler at the start of each epoch, and set no seed within the loop.",
    )
    source: ClassVar[str] = "a definition; eight batches or a whole period must have come again in the same order"
    consequence: ClassVar[str] = (
        "The order of the data and random augmentations repeat in each epoch, so that the model sees less variety than planned."
    )
    false_alarm: ClassVar[str] = (
        "A seed that is set at each epoch on purpose, to compare runs, gives the same picture. Accept the finding there."
    )


@dataclass(frozen=True, kw_only=True)
class BatchStuck(HealthRule):
    """One batch comes again and again, after others that each came once.

    It is looked at in the first 4,096 batches.
    """

    patience: int = 1
    every_n_steps: int = 5
    family: ClassVar[str] = "facts"
    looks_for: ClassVar[tuple[str, ...]] = ("batch-stuck",)
    next_steps: ClassVar[tuple[str, ...]] = (
        "Look for `next(iter(loader))` within the loop, and for a batch that is kept and given again.",
    )
    source: ClassVar[str] = "ours: the batch must have come 20 times in a row, after 10 or more that came once"
    consequence: ClassVar[str] = (
        "The model fits a single batch and forgets the rest. The training loss looks good, and validation does not."
    )
    false_alarm: ClassVar[str] = (
        "A test that overfits one batch from its start is not told, since other batches must have come before."
    )


@dataclass(frozen=True, kw_only=True)
class BatchesRepeat(HealthRule):
    """Batches come again, which may be meant: in each epoch in the same order, several times in a row, or always the same one.

    It is looked at in the first 4,096 batches; in a plain loop what the root module is given first in each step.
    """

    patience: int = 1
    every_n_steps: int = 5
    severity: Severity = Severity.INFO
    family: ClassVar[str] = "facts"
    looks_for: ClassVar[tuple[str, ...]] = ("batches-in-a-row", "batches-repeat")
    next_steps: ClassVar[tuple[str, ...]] = (
        "If the order is to differ from epoch to epoch, give the loader `shuffle=True`.",
        "If the data set or its workers draw random numbers, look at the seeds that are set.",
    )
    source: ClassVar[str] = "a definition; eight batches or a whole period must have come again"
    consequence: ClassVar[str] = (
        "The same order in each epoch can slow learning down and lets errors of neighbouring batches repeat."
    )
    false_alarm: ClassVar[str] = (
        "Several steps on one batch and a fixed order are common on purpose, so that the finding is information."
    )


@dataclass(frozen=True, kw_only=True)
class LossFollowsOrder(HealthRule):
    """The same batches come in the same order in each epoch, and the loss rises and falls with them.

    The loss changes slowly from batch to batch, rises by a large factor more than once, and does so again after a fixed number
    of steps, as where samples are sorted by their labels. The levels are medians of eight losses.

    Args:
        factor: the multiple of a level before to which the loss rises.
        times: the smallest rise in standard errors.
        rises: their smallest number.
        smooth: the smallest correlation of neighbouring levels.
        again: the smallest correlation of levels that are one round apart.
        least: the smallest number of losses.
    """

    factor: float = 2.0
    times: float = 6.0
    rises: int = 2
    smooth: float = 0.3
    again: float = 0.6
    least: int = 128
    patience: int = 1
    every_n_steps: int = 20
    family: ClassVar[str] = "loss"
    obstacles: ClassVar[Obstacles] = (no_loss,)
    looks_for: ClassVar[tuple[str, ...]] = ("batches-repeat",)
    next_steps: ClassVar[tuple[str, ...]] = (
        "Give the loader `shuffle=True`, or mix the samples when they are written.",
        "If the order must stay, as in a stream, keep a buffer from which batches are drawn at random.",
    )
    source: ClassVar[str] = (
        "ours: medians of eight losses of healthy trainings with a fixed order rise by no factor of 2 twice; trainings on "
        "sorted samples do so in each epoch"
    )
    consequence: ClassVar[str] = (
        "The model learns the samples of the last steps and forgets those before, so that it is never good at all of them."
    )
    false_alarm: ClassVar[str] = (
        "A curriculum or a stream of seasons has such an order on purpose. Accept the finding if evaluation improves."
    )

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        loss = evidence.loss()
        if loss is None or not loss.values.shape[1] or not any(True for _ in sightings_in(evidence, self.looks_for)):
            return
        is_known = np.isfinite(loss.values[:, 0]) & (loss.steps >= evidence.first_step + EarlyLosses.FIRST)
        values = loss.values[is_known, 0]
        if len(values) < self.least or values.min() <= 0:
            return
        levels = np.median(values[len(values) % _BLOCK :].reshape(-1, _BLOCK), axis=1)
        rises = self._rises(levels, self.times * error_of(noise_of(values), _BLOCK, _BLOCK))
        period = self._period(levels)
        if len(rises) >= self.rises and period:
            low, high = max(rises, key=lambda each: each[1] / each[0])
            text = (
                f"the same batches come in the same order, and the loss follows it: it rises from {low:.3g} to {high:.3g}, and "
                f"does so again after about {period} steps"
            )
            yield Symptom("", tensor="", step=evidence.step, measured=high / low, threshold=self.factor, text=text)

    def _rises(self, levels: Array, least: float) -> list[tuple[float, float]]:
        """The rises by the factor, one after the other, each from the lowest level since the one before."""
        found, low = [], float(levels[0])
        for level in levels[1:].tolist():
            low = min(low, level)
            if level >= self.factor * low and level - low > least:
                found.append((low, level))
                low = level
        return found

    def _period(self, levels: Array) -> int:
        """After about how many steps the levels come again; 0 if they do not."""
        logs, at = np.log(levels), np.arange(len(levels))
        logs = logs - np.polyval(np.polyfit(at, logs, 1), at)
        # Rounds are looked for that the window holds at least one and a half times.
        longest = 2 * len(levels) // 3
        if np.std(logs) == 0 or longest <= _SHORTEST or _correlation(logs, 1) < self.smooth:
            return 0
        correlations = {lag: _correlation(logs, lag) for lag in range(_SHORTEST, longest)}
        lag = max(correlations, key=lambda each: correlations[each])
        return _BLOCK * lag if correlations[lag] >= self.again else 0


_BLOCK: Final = 8
"""The number of losses whose median is a level."""
_SHORTEST: Final = 5
"""The smallest number of levels in a round of batches."""


def _correlation(values: Array, lag: int) -> float:
    """The correlation of a series with itself some places later."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return float(np.nan_to_num(np.corrcoef(values[:-lag], values[lag:])[0, 1]))


RULES: Final[tuple[HealthRule, ...]] = (WorkersRepeat(), EpochsRepeat(), BatchStuck(), BatchesRepeat(), LossFollowsOrder())
"""The rules on batches that come again, with their defaults."""
