"""References to the last batches of a run, which tell what was changed in place since."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from lightning_hooks.nested.tensors import named_tensors, tensors_of
from lightning_hooks.snapshot.generators import Generators
from lightning_hooks.tensor_kinds import version_of


class KeptBatch(NamedTuple):
    """One of the last batches, kept by reference for a second run of its step.

    Args:
        batch: the batch itself, not a copy.
        batch_idx: its index, as Lightning gives it.
        step: the step that it belongs to.
        versions: the version counters of its tensors when it was kept, in the order of `tensors_of`.
        generators: the states of the generators when it was kept.
    """

    batch: Any
    batch_idx: int
    step: int
    versions: tuple[int, ...]
    generators: Generators

    def changed(self) -> list[str]:
        """The tensors that were changed in place since the batch was kept, by name. If any was, the step cannot run again."""
        named = list(named_tensors(self.batch))
        if len(named) != len(self.versions):
            return ["batch"]
        return [name for (name, each), version in zip(named, self.versions, strict=True) if version_of(each) != version]


class BatchReferences:
    """References to the last batches of a run.

    Call `keep` at the start of each batch, and `close` when the run ends, so that no batch lives longer than the run.

    Args:
        most: the number of batches that are kept.

    Example:
        >>> import torch
        >>> references, batch = BatchReferences(), {"x": torch.ones(2), "y": [torch.zeros(2)]}
        >>> references.keep(batch, 0, step=7)
        >>> batch["y"][0].add_(1)
        tensor([1., 1.])
        >>> references.last_of(step=7).changed()
        ["batch['y'][0]"]
    """

    def __init__(self, most: int = 2) -> None:
        self._kept: deque[KeptBatch] = deque(maxlen=most)

    def keep(self, batch: Any, batch_idx: int, step: int) -> None:
        """Keep a reference to a batch, the version counters of its tensors, and the states of the generators."""
        versions = tuple([version_of(each) for each in tensors_of(batch)])
        # Reading the state of NumPy's generator takes long; that of the previous batch serves if nothing was drawn since.
        generators = Generators(self._kept[-1].generators if self._kept else None)
        self._kept.append(KeptBatch(batch, batch_idx, step, versions, generators))

    @property
    def kept(self) -> tuple[KeptBatch, ...]:
        """The batches, the earliest first."""
        return tuple(self._kept)

    def last_of(self, step: int) -> KeptBatch | None:
        """The last batch of a step; None if it is not kept."""
        return next((kept for kept in reversed(self._kept) if kept.step == step), None)

    def close(self) -> None:
        """Drop all references."""
        self._kept.clear()
