"""Rules on batches that come again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from lightning_hooks.health.rule import HealthRule, Severity


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


RULES: Final[tuple[HealthRule, ...]] = (WorkersRepeat(), EpochsRepeat(), BatchStuck(), BatchesRepeat())
"""The rules on batches that come again, with their defaults."""
