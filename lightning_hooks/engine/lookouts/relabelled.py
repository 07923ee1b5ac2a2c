"""Looks whether the samples of an epoch have the targets that they had in the epoch before."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_hooks.engine.lookouts.fingerprints import can_copy, have_arrived
from lightning_hooks.engine.lookouts.loaders import batches_of
from lightning_hooks.engine.lookouts.loss_targets import targets_of
from lightning_hooks.engine.lookouts.surroundings import Surroundings
from lightning_hooks.engine.participants.lookout import Lookout
from lightning_hooks.hooks import Handles, HookSwitch
from lightning_hooks.nested.tensors import tensors_of
from lightning_hooks.records.facts import Sighting
from lightning_hooks.stats.host_copy import HostCopy, begin_copy

_EPOCH: Final = 2048
"""The number of batches of an epoch up to which samples are looked at."""
_ROWS: Final = 64
"""The samples of a batch that are looked at."""
_COLUMNS: Final = 64
"""The numbers of a sample by which it is known, at least, of each tensor that has as many."""
_MOST_TENSORS: Final = 4
_MOST_SAMPLES: Final = 8192
_ENOUGH: Final = 96
"""The samples that must have come again in a later epoch."""
_SHARE: Final = 0.1
"""The share of them from which on other targets are no accident."""
_CLASHES: Final = 0.01
"""The share of samples that may have another target than an equal one of the same epoch."""
_APART: Final = 0.1
"""The share of the range of all targets by which two numbers are no noise on one of them."""


class Samples:
    """Compares the targets of samples that come again in a later epoch.

    Attributes:
        again: the samples that came again in another epoch.
        others: those of them that had another target.

    Example:
        >>> samples = Samples()
        >>> inputs = np.arange(8.0)[:, None]
        >>> for epoch, labels in enumerate([np.arange(8), np.arange(8)[::-1]]):
        ...     samples.add(epoch, inputs, labels, are_classes=True)
        >>> samples.again, samples.others, samples.is_sure
        (8, 8, True)
    """

    def __init__(self) -> None:
        self.again = self.others = self._clashes = 0
        self._known: dict[bytes, tuple[int, float]] = {}  # the epoch and the target of each sample
        self._low, self._high = np.inf, -np.inf

    def add(self, epoch: int, inputs: NDArray[Any], targets: NDArray[Any], *, are_classes: bool) -> None:
        """Add samples of an epoch.

        Args:
            epoch: its number.
            inputs: some numbers of each sample, [samples, numbers].
            targets: one number for each, [samples].
            are_classes: whether targets are numbers of classes, any two of which differ.
        """
        self._low, self._high = min(self._low, float(targets.min())), max(self._high, float(targets.max()))
        apart = 0.0 if are_classes else _APART * (self._high - self._low)
        for row, target in zip(np.ascontiguousarray(inputs), targets.tolist(), strict=True):
            key = row.tobytes()
            if key not in self._known:
                if len(self._known) < _MOST_SAMPLES:
                    self._known[key] = epoch, target
                continue
            before, known = self._known[key]
            differs = abs(target - known) > apart
            if before == epoch:
                self._clashes += differs
            elif self.again < _ENOUGH:
                self.again, self.others = self.again + 1, self.others + differs

    @property
    def is_sure(self) -> bool:
        """Whether hardly a sample had two targets within one epoch, as where inputs do not tell samples apart."""
        return self._clashes <= max(2, _CLASHES * len(self._known))


class _Batch(NamedTuple):
    """Some numbers of a batch: its epoch, its inputs, its targets, and whether these are classes."""

    epoch: int
    inputs: tuple[HostCopy, ...]
    targets: HostCopy
    are_classes: bool


class RelabelledLookout(Lookout):
    """Looks at some samples of each batch in the first two epochs, if a loss has one target for each that the loader gave."""

    kinds: ClassVar[tuple[str, ...]] = ("targets-change",)

    def __init__(self, surroundings: Surroundings) -> None:
        self._around = surroundings
        self._samples = Samples()
        self._batch: list[Tensor] = []
        self._pending: deque[_Batch] = deque()
        self._count = self._unseen = 0

    def step_key(self, step: int, stage: str) -> Hashable | None:
        return "relabelled" if stage == "train" and self._looks else None

    @property
    def _looks(self) -> bool:
        if not self._around.knows_batches or self._around.overfits or not self._samples.is_sure:
            return False
        # Where no loss has such a target in ten batches, none will.
        is_judged = self._samples.again >= _ENOUGH or self._unseen >= 10
        return not is_judged and (not self._count or self._count < 3 * self._epoch)

    @property
    def _epoch(self) -> int:
        """The number of batches of an epoch; 0 if it is not known, or too large."""
        loaders = self._around.loaders()
        count = batches_of(loaders[0]) if len(loaders) == 1 else 0
        return count if 1 < count <= _EPOCH else 0

    def register(self, key: Any, switch: HookSwitch, handles: Handles) -> None:
        """Nothing is hooked: the driver passes on batches and losses."""

    def saw_batch(self, batch: Any) -> None:
        self._batch = tensors_of(batch)

    def end_step(self) -> None:
        self._batch = []
        self._take()

    def left(self) -> None:
        self._batch = []
        self._pending.clear()

    def saw_loss(self, loss: Tensor) -> None:
        epoch, number = self._epoch, self._count
        self._count += 1
        found = self._given(loss) if epoch else None
        if found is None:
            self._unseen += 1
            return
        inputs, target, are_classes = found
        copies = tuple(begin_copy(_few(each)) for each in inputs)
        self._pending.append(_Batch(number // epoch, copies, begin_copy(target[:_ROWS].double().clone()), are_classes))
        self._take()

    def _given(self, loss: Tensor) -> tuple[list[Tensor], Tensor, bool] | None:
        """The inputs of a batch, its targets, one for each sample, and whether they are classes; None if there are none."""
        targets = targets_of(loss) if loss.numel() == 1 and can_copy(loss.detach()) else []
        if len(targets) != 1 or len(self._batch) < 2:
            return None
        target = targets[0].tensor.detach().reshape(-1)
        own = [each for each in self._batch if can_copy(each) and _memory(each) == _memory(target)]
        inputs = [each for each in self._batch if can_copy(each) and _memory(each) != _memory(target)]
        are_rows = len(own) == 1 and len(inputs) == len(self._batch) - 1 and own[0].numel() == len(target)
        if not are_rows or len(target) < 2 or any(not each.dim() or len(each) != len(target) for each in inputs):
            return None
        return inputs[:_MOST_TENSORS], target, targets[0].ignored is not None

    def _take(self) -> None:
        """Compare what has arrived from the device."""
        while self._pending and have_arrived([*self._pending[0].inputs, self._pending[0].targets]):
            epoch, inputs, targets, are_classes = self._pending.popleft()
            if self._samples.again < _ENOUGH:
                rows = np.concatenate([each.wait() for each in inputs], axis=1)
                self._samples.add(epoch, rows, targets.wait(), are_classes=are_classes)

    def sightings(self) -> tuple[Sighting, ...]:
        self._take()
        samples = self._samples
        if not samples.is_sure or samples.again < _ENOUGH or samples.others < _SHARE * samples.again:
            return ()
        text = f"of {samples.again} samples that came again in a later epoch, {samples.others} had another target than before"
        return (Sighting("targets-change", text, measured=samples.others / samples.again, threshold=_SHARE),)


@torch.no_grad()
def _few(tensor: Tensor) -> Tensor:
    """Some numbers of the first samples, float64 [samples, numbers]: NumPy does not know every format."""
    real = torch.view_as_real(tensor.detach().resolve_conj()) if tensor.is_complex() else tensor.detach()
    rows = real[:_ROWS].flatten(1) if real.dim() > 1 else real[:_ROWS, None]
    return rows[:, :: max(1, rows.shape[1] // _COLUMNS)].to(torch.float64, copy=True)


def _memory(tensor: Tensor) -> int:
    """The address of the memory that a tensor is a view of."""
    return tensor.untyped_storage().data_ptr()


LOOKOUTS: Final[tuple[type[Lookout], ...]] = (RelabelledLookout,)
"""The lookouts of this file."""
