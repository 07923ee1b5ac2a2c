"""Keeps the norm of the gradient of each row of the last batches, so that a spike can be told to the row."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import partial
from math import isfinite
from typing import Any, ClassVar, Final, NamedTuple
from weakref import ReferenceType, ref

import numpy as np
import torch
from torch import Tensor, nn

from lightning_hooks.engine.lookouts.row_shares import Bad, Part, Rows
from lightning_hooks.engine.lookouts.sampling import SampledIndices, indices_of
from lightning_hooks.engine.lookouts.surroundings import Surroundings
from lightning_hooks.engine.participants.compiled import compiled_modules
from lightning_hooks.engine.participants.facts import role_of
from lightning_hooks.engine.participants.lookout import Lookout
from lightning_hooks.hooks import Action, Handles, HookSwitch
from lightning_hooks.nested.tensors import tensors_in, tensors_of
from lightning_hooks.records.facts import Sighting
from lightning_hooks.rules.layers import has_children
from lightning_hooks.rules.patterns import named_modules
from lightning_hooks.stats.host_copy import HostCopy, begin_copy
from lightning_hooks.stats.kernels import is_capturing
from lightning_hooks.stats.processes import world_size
from lightning_hooks.tensor_kinds import is_dense

KIND: Final = "rows-behind"
_KEPT: Final = 64
"""The number of last steps of which rows are kept: rules look back up to forty steps."""
_SEARCH: Final = 8
"""The number of first steps in which the last module that gets a gradient is looked for."""
_BEFORE: Final = 16
"""The number of steps above all of which a gradient must jump for the event file to keep its rows."""
_JUMP: Final = 2.0
_READS: Final = 3
"""How often facts keep a sighting."""
_INPUTS: Final = 2
"""The number of tensors of a batch that are looked at for numbers that are not finite."""
_DEVICES: Final = ("cpu", "cuda")
"""The devices from which numbers come without waiting."""


class _Kept(NamedTuple):
    """What was measured in one step, by the number of the batch in it: numbers may still be on their way from a device."""

    step: int
    norms: Mapping[int, HostCopy]
    inputs: Mapping[int, HostCopy]
    samples: Mapping[int, Sequence[object] | None]

    @property
    def has_arrived(self) -> bool:
        """Whether all numbers are in host memory."""
        return all(each.has_arrived for each in (*self.norms.values(), *self.inputs.values()))


class RowsLookout(Lookout):
    """Measures the norm of each row of the gradient at the last module that gets one, one small vector in a step.

    The first dimension is that of the batch if its size is that of the first tensor of the batch. Nothing waits for a device:
    numbers are copied, and read when a rule asks for the rows of a step.
    """

    kinds: ClassVar[tuple[str, ...]] = (KIND,)

    def __init__(self, surroundings: Surroundings) -> None:
        self._around = surroundings
        self._names: dict[int, str] = {}
        self._head: ReferenceType[nn.Module] | None = None
        self._searched = 0
        self._kept: deque[_Kept] = deque(maxlen=_KEPT)
        self._squares: deque[float] = deque(maxlen=_BEFORE)
        self._waiting: deque[_Kept] = deque(maxlen=_KEPT)  # the steps that were not compared with those before
        self._is_alone = True
        self._was_finite = True
        self._told: list[tuple[Sighting, int]] = []  # with how often facts are still to keep it
        self._indices: SampledIndices | None = None
        self._handles: Handles | None = None
        self._loader: Any = None
        self._begin(-1)

    def _begin(self, step: int) -> None:
        self._step = step
        self._batch, self._size = -1, 0
        self._norms: dict[int, Tensor] = {}
        self._largest: dict[int, Tensor] = {}  # the largest magnitude of the input of each row
        self._inputs: dict[int, Sequence[Tensor]] = {}
        self._samples: dict[int, Sequence[object] | None] = {}
        self._noted = 0  # the batches of the step that are kept

    def step_key(self, step: int, stage: str) -> Hashable | None:
        if stage != "train" or not self._is_alone or (self._head is None and self._searched >= _SEARCH):
            return None
        return "search" if self._head is None else "rows"

    def joined(self, switch: HookSwitch, handles: Handles) -> None:
        self._handles = handles
        # On several ranks each would tell other rows, and the findings of all ranks are to be the same.
        self._is_alone = world_size() == 1
        self._look_at_loader()

    def begin_step(self, step: int, stage: str, reporting: bool) -> None:
        self._begin(step)
        self._searched += self._head is None

    def actions(self, key: Any) -> Iterable[Action]:
        model = self._around.model()
        if model is None:
            return
        inside = compiled_modules(model)
        if not self._around.knows_batches and id(model) not in inside:
            yield Action(model, "input", self._saw_call, whole=True)
        head = None if self._head is None else self._head()
        for target in named_modules(model):
            module = target.value
            is_asked = module is head if head is not None else not has_children(module) and role_of(module) != "loss"
            if is_asked and id(module) not in inside:
                self._names[id(module)] = target.name
                yield Action(module, "output_grad", partial(self._arrived, ref(module)))

    def saw_batch(self, batch: Any) -> None:
        self._look_at_loader()
        self._see(tensors_of(batch))
        if self._size and self._indices is not None:
            self._samples[self._batch] = self._indices.take(self._size)

    def _saw_call(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        self._see([*tensors_in(args), *tensors_in(kwargs)])

    def _look_at_loader(self) -> None:
        """Note the indices that the loader samples, from the next pass on if it is another loader than before."""
        loaders = self._around.loaders()
        loader = loaders[0] if len(loaders) == 1 else None
        if loader is not self._loader and self._handles is not None:
            self._loader = loader
            if self._indices is not None:
                self._indices.remove()
            self._indices = indices_of(loader)
            if self._indices is not None:
                self._handles.keep(self._indices)

    def _see(self, tensors: Sequence[Tensor]) -> None:
        """A batch begins, of which these are the tensors."""
        self._batch += 1
        first = next((each for each in tensors if is_dense(each) and each.dim()), None)
        self._size = 0 if first is None else first.shape[0]
        if first is None or first.is_cpu:
            # In host memory, the batch need not be measured before a number is bad.
            self._inputs[self._batch] = tensors
        elif self._size and _can_wait(first.device):
            self._measure_inputs(self._batch, tensors)

    def _measure_inputs(self, batch: int, tensors: Sequence[Tensor]) -> None:
        """Note the largest magnitude in each row of the first tensors of a batch."""
        rows = (each for each in tensors if is_dense(each) and each.is_floating_point() and each.dim() and each.numel())
        for each in [each for each in rows if len(each) == self._size and _can_wait(each.device)][:_INPUTS]:
            self._largest[batch] = _joined(self._largest.get(batch), _norms_of(each.detach(), float("inf")))

    def _arrived(self, module: ReferenceType[nn.Module], grad: Tensor) -> None:
        """A gradient has arrived at a module."""
        if not self._size or not is_dense(grad) or not grad.dim() or grad.shape[0] != self._size or grad.is_complex():
            return
        if not _can_wait(grad.device):
            return
        if self._head is None:
            self._head = module
        if self._head() is module():
            norms = _norms_of(grad.detach(), 2.0)
            self._norms[self._batch] = _joined(self._norms.get(self._batch), norms)

    def end_step(self) -> None:
        self._note()
        self._begin(-1)

    def _note(self) -> None:
        """Keep what has arrived in the step under way; again if more arrives after its facts were read."""
        if len(self._norms) > self._noted:
            self._noted = len(self._norms)
            kept = self._now()
            self._kept.append(kept)
            self._waiting.append(kept)
            self._judge()

    def left(self) -> None:
        self._begin(-1)
        self._loader = self._indices = self._handles = None

    def _now(self) -> _Kept:
        """What was measured in the step under way."""
        norms = {batch: begin_copy(each) for batch, each in self._norms.items()}
        if all(each.ready for each in norms.values()) and not isfinite(_square(norms)):
            for batch, tensors in self._inputs.items():
                self._measure_inputs(batch, tensors)
            self._inputs.clear()
        largest = {batch: begin_copy(each) for batch, each in self._largest.items()}
        return _Kept(self._step, norms, largest, self._samples)

    def _judge(self) -> None:
        """Tell the rows of the steps at which the gradient jumps or is not finite, as far as their numbers have arrived."""
        while self._waiting and self._waiting[0].has_arrived:
            kept = self._waiting.popleft()
            square = _square(kept.norms)
            is_finite = isfinite(square)
            jumps = len(self._squares) == _BEFORE and square > _JUMP**2 * max(self._squares)
            if (jumps if is_finite else self._was_finite) and (text := self._rows(kept).text()):
                self._told.append((_sighting(text, kept.step), _READS))
            self._was_finite = is_finite
            if is_finite:
                self._squares.append(square)

    def sightings(self) -> tuple[Sighting, ...]:
        self._note()
        told = tuple(sighting for sighting, _ in self._told)
        self._told = [(sighting, reads - 1) for sighting, reads in self._told if reads > 1]
        return told

    def of_step(self, step: int) -> tuple[Sighting, ...]:
        now = [self._now()] if step == self._step and self._norms else []
        kept = next((each for each in (*now, *reversed(self._kept)) if each.step == step), None)
        if kept is None or not kept.has_arrived:
            return ()
        text = self._rows(kept).text()
        return (_sighting(text, step),) if text else ()

    def _rows(self, kept: _Kept) -> Rows:
        head = None if self._head is None else self._head()
        rows = Rows(kept.step, self._names.get(id(head), ""))
        for batch, copy in sorted(kept.norms.items()):
            norms = copy.wait().astype(np.float64)
            bad: Bad | None = ~np.isfinite(kept.inputs[batch].wait()) if batch in kept.inputs else None
            rows.parts.append(Part(norms, bad, kept.samples.get(batch)))
        return rows


def _sighting(text: str, step: int) -> Sighting:
    return Sighting(KIND, text, is_fact=False, at=step)


def _can_wait(device: torch.device) -> bool:
    """Whether numbers of a device come without waiting for it, and are computed now."""
    return device.type in _DEVICES and not is_capturing(device)


def _square(norms: Mapping[int, HostCopy]) -> float:
    """The squared norm of the whole gradient, from those of its rows."""
    return sum([float(np.dot(each, each)) for each in (copy.wait() for copy in norms.values())])


def _norms_of(tensor: Tensor, order: float) -> Tensor:
    """The norm of each row of a detached tensor; that of order infinity is the largest magnitude, or NaN where one is."""
    if tensor.dim() == 1:
        return tensor.abs().float()
    dims = 1 if tensor.dim() == 2 else tuple(range(1, tensor.dim()))
    norms: Tensor = torch.linalg.vector_norm(tensor, order, dim=dims, dtype=torch.float32 if tensor.itemsize < 4 else None)
    return norms if norms.dtype is torch.float32 else norms.float()


def _joined(known: Tensor | None, new: Tensor) -> Tensor:
    """The norms of several tensors with the same rows."""
    return new if known is None or len(known) != len(new) else torch.hypot(known, new)


LOOKOUTS: Final[tuple[type[Lookout], ...]] = (RowsLookout,)
"""The lookouts of this file."""
