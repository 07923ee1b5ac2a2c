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


RULES: Final[tuple[HealthRule, ...]] = (WorkersRepeat(), EpochsRepeat(), BatchStuck(), BatchesRepeat())
"""The rules on batches that come again, with their defaults."""
