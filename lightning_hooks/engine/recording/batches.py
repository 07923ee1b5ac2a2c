"""References to the batches of a run whose gradients no update has read yet, which tell what was changed in place since."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import torch

from lightning_hooks.nested.tensors import named_tensors, tensors_of
from lightning_hooks.snapshot.generators import Generators
from lightning_hooks.tensor_kinds import version_of, without_subclass

MOST_BYTES: Final = 256_000_000
"""The most bytes of the tensors of the batches that are kept beside the last one."""
MOST_TENSORS: Final = 256
"""The most of these batches and their tensors: each tensor that a worker of a data loader has made holds a file open."""


class KeptBatch(NamedTuple):
    """One of the last batches, kept by reference for a second run of its step.

    Args:
        batch: the batch itself, not a copy.
        batch_idx: its index, as Lightning gives it.
        step: the step that it belongs to.
        micro_batch: its number in its step, from 0.
        versions: the version counters of its tensors when it was kept, in the order of `tensors_of`.
        nbytes: the bytes of its tensors.
        generators: the states of the generators when it was kept; None if nothing is to run again from them.
    """

    batch: Any
    batch_idx: int
    step: int
    micro_batch: int
    versions: tuple[int, ...]
    nbytes: int
    generators: Generators | None

    def changed(self) -> list[str]:
        """The tensors that were changed in place since the batch was kept, by name. If any was, the step cannot run again."""
        named = list(named_tensors(self.batch))
        if len(named) != len(self.versions):
            return ["batch"]
        return [name for (name, each), version in zip(named, self.versions, strict=True) if version_of(each) != version]


class BatchReferences:
    """References to the batches since the last update, and to the last batch before it.

    Call `keep` at the start of each batch, and `close` when the run ends, so that no batch lives longer than the run. The last
    batch is kept however large it is; the earliest of the others are dropped if they have too many bytes or tensors.

    Args:
        most_bytes: the most bytes of the batches since the last update without the last batch.
        with_generators: whether the states of the generators are kept with each batch.

    Example:
        >>> import torch
        >>> references, batch = BatchReferences(), {"x": torch.ones(2), "y": [torch.zeros(2)]}
        >>> references.keep(batch, 0, step=7)
        >>> batch["y"][0].add_(1)
        tensor([1., 1.])
        >>> references.of(step=7, micro_batch=0).changed()
        ["batch['y'][0]"]
    """

    def __init__(self, most_bytes: int = MOST_BYTES, *, with_generators: bool = True) -> None:
        self._most_bytes, self._with_generators = most_bytes, with_generators
        self._before: KeptBatch | None = None
        self._kept: list[KeptBatch] = []
        self._dropped = 0
        self._nbytes = self._tensors = 0  # of the batches that are kept beside the last one

    def keep(self, batch: Any, batch_idx: int, step: int, micro_batch: int = 0, *, after_update: bool = True) -> None:
        """Keep a reference to a batch, the version counters of its tensors, and the states of the generators.

        Args:
            batch: the batch.
            batch_idx: its index.
            step: its step.
            micro_batch: its number in the step.
            after_update: whether an update has read the gradients of the batches before.
        """
        versions, nbytes = [], 0
        with without_subclass():
            for each in tensors_of(batch):
                versions.append(version_of(each))
                nbytes += each.nbytes if each.layout is torch.strided else 0
        last = self._kept[-1] if self._kept else None
        # Reading the state of NumPy's generator takes long; that of the previous batch serves if nothing was drawn since.
        generators = Generators(None if last is None else last.generators) if self._with_generators else None
        if after_update:
            self._before, self._kept, self._dropped = last, [], 0
            self._nbytes = self._tensors = 0
        self._kept.append(KeptBatch(batch, batch_idx, step, micro_batch, tuple(versions), nbytes, generators))
        self._add(last if len(self._kept) > 1 else None, 1)
        while len(self._kept) > 1 and (self._nbytes > self._most_bytes or self._tensors > MOST_TENSORS):
            self._add(self._kept.pop(0), -1)
            self._dropped += 1

    def _add(self, kept: KeptBatch | None, sign: int) -> None:
        """Count one of the batches before the last, or count it no longer."""
        if kept is not None:
            self._nbytes += sign * kept.nbytes
            self._tensors += sign * (1 + len(kept.versions))

    @property
    def since_update(self) -> tuple[KeptBatch, ...]:
        """The batches that are kept of those since the last update, the earliest first."""
        return tuple(self._kept)

    @property
    def dropped(self) -> int:
        """The number of batches since the last update that are not kept, because they are too large."""
        return self._dropped

    def of(self, step: int, micro_batch: int) -> KeptBatch | None:
        """A batch by its step and its number in that step; None if it is not kept."""
        kept = [*([] if self._before is None else [self._before]), *self._kept]
        return next((each for each in reversed(kept) if (each.step, each.micro_batch) == (step, micro_batch)), None)

    @property
    def reason(self) -> str:
        """Why a batch may not be kept, as a clause."""
        limits = f"those since the last update are kept up to {self._most_bytes // 1_000_000} MB and {MOST_TENSORS} tensors"
        return limits if self._kept else "the loop has not given it"

    def close(self) -> None:
        """Drop all references."""
        self._before, self._kept = None, []
