"""Looks at the targets of the loss: whether any counts, whether they vary, and what of the given tokens they are."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
from torch import Tensor

from lightning_hooks.engine.lookouts.entry import Entry
from lightning_hooks.engine.lookouts.fingerprints import can_copy, have_arrived
from lightning_hooks.engine.lookouts.loaders import batches_of
from lightning_hooks.engine.lookouts.loss_targets import LossTarget, targets_of
from lightning_hooks.engine.lookouts.places import MOST_PLACES, Places
from lightning_hooks.engine.lookouts.surroundings import Surroundings
from lightning_hooks.engine.lookouts.tokens import Tokens
from lightning_hooks.engine.participants.lookout import Lookout
from lightning_hooks.errors import enumerated
from lightning_hooks.hooks import Handles, HookSwitch
from lightning_hooks.nested.tensors import tensors_of
from lightning_hooks.records.facts import Sighting
from lightning_hooks.stats.host_copy import HostCopy, begin_copy

STEPS: Final = 12
"""The number of first steps at which targets are looked at."""
_MOST_STEPS: Final = 1000
"""The number of first steps at which they are looked at while they do not vary, or none counts."""
_LOSSES: Final = 5
"""The losses of which no target may count."""
_SAMPLES: Final = 1500
"""The samples that must have the same target."""
_SAMPLES_OF_ZERO: Final = 10_000
"""The samples that must have the target 0: rare events are 1, and may not come for long."""
_OF_AN_EPOCH: Final = 200
"""The samples that must have the same target if they are those of a whole epoch."""
_ROWS: Final = 8
"""The sequences of a batch that are looked at."""
_GIVEN: Final = 3
"""The tensors of tokens of a batch that are looked at."""


_PLACES: Final = (
    "are the given tokens themselves",
    "are the next tokens",
    *(f"are the tokens {place} places behind the given ones" for place in range(2, MOST_PLACES)),
)
"""What targets are, by their place."""


class _Target(NamedTuple):
    """A target of a loss: its `range`, whether it is a tensor of the batch, its samples, its elements, and what is ignored."""

    range: HostCopy
    is_data: bool
    samples: int
    size: int
    ignored: int | None


class _Sequences(NamedTuple):
    """Some sequences of a batch: targets [rows, length], what was given, and the target that does not count."""

    targets: HostCopy
    given: tuple[HostCopy, ...]
    ignored: int


class _Loss(NamedTuple):
    """What was copied of a loss and its targets."""

    value: HostCopy
    targets: tuple[_Target, ...]
    sequences: _Sequences | None

    @property
    def has_arrived(self) -> bool:
        copies = [self.value, *(each.range for each in self.targets)]
        if self.sequences is not None:
            copies += [self.sequences.targets, *self.sequences.given]
        return have_arrived(copies)


class TargetsLookout(Lookout):
    """Looks at targets that the graph of the loss holds. Numbers are copied to the host, and read when they have arrived."""

    kinds: ClassVar[tuple[str, ...]] = (
        *("targets-ignored", "targets-constant", "end-never-target", "targets-are-inputs"),
        "targets-misplaced",
    )

    def __init__(self, surroundings: Surroundings) -> None:
        self._around = surroundings
        self._entry = Entry(surroundings, self._saw)
        self._looked = 0
        self._batch: list[Tensor] = []
        self._pending: deque[_Loss] = deque()
        self._tokens, self._places = Tokens(), Places()
        self._ignoring: tuple[int, int, int] | None = (0, 0, 0)  # losses, their targets, what is ignored; None if one counts
        # The batches and samples so far, and their smallest and largest target; None if they vary.
        self._same: tuple[int, int, float, float] | None = (0, 0, np.inf, -np.inf)
        self._frozen: dict[str, str] = {}  # texts by kind, with the numbers at which they were first true

    def step_key(self, step: int, stage: str) -> Hashable | None:
        return "targets" if stage == "train" and self._looks else None

    @property
    def _looks(self) -> bool:
        never_counts = self._ignoring is not None and self._ignoring[0] > 0
        never_varies = self._same is not None and self._same[1] > 0
        return self._looked < (_MOST_STEPS if never_counts or never_varies else STEPS)

    def joined(self, switch: HookSwitch, handles: Handles) -> None:
        self._entry.look_up()

    def register(self, key: Any, switch: HookSwitch, handles: Handles) -> None:
        self._entry.register(switch, handles)

    def begin_step(self, step: int, stage: str, reporting: bool) -> None:
        self._looked += 1
        self._entry.begin_step()

    def end_step(self) -> None:
        self._batch = []
        self._take()

    def left(self) -> None:
        self._batch = []
        self._pending.clear()

    def saw_batch(self, batch: Any) -> None:
        self._saw(tensors_of(batch))

    def _saw(self, tensors: list[Tensor]) -> None:
        self._batch = tensors

    def saw_loss(self, loss: Tensor) -> None:
        targets = targets_of(loss) if loss.numel() == 1 and can_copy(loss.detach()) else []
        if not targets:
            return
        data = {_memory(each) for each in self._batch if can_copy(each)}
        copied = (
            _Target(begin_copy(each.range()), _memory(each.tensor) in data, len(each.tensor), each.tensor.numel(), each.ignored)
            for each in targets
            if each.tensor.dim()
        )
        sequences = self._sequences(targets) if self._looked <= STEPS else None
        # Copy the loss: in host memory the copy would share the memory of the loss, which may be changed in place.
        self._pending.append(_Loss(begin_copy(loss.detach().double().clone()), tuple(copied), sequences))
        self._take()

    def _sequences(self, targets: Sequence[LossTarget]) -> _Sequences | None:
        """Copies of the first sequences of a batch, if a loss has one target of classes and the batch has as many tokens."""
        target, ignored = targets[0]
        if len(targets) != 1 or ignored is None:
            return None
        others = [each for each in self._batch if _memory(each) != _memory(target)] if len(self._batch) > 1 else self._batch
        given = [each for each in others if _are_tokens(each, target)][:_GIVEN]
        if not given:
            return None
        rows = target.reshape(len(given[0]), -1)[:_ROWS].long().clone()
        return _Sequences(begin_copy(rows), tuple(begin_copy(each[:_ROWS].long().clone()) for each in given), ignored)

    def _take(self) -> None:
        """Read what has arrived from the device."""
        while self._pending and self._pending[0].has_arrived:
            loss = self._pending.popleft()
            self._count(loss)
            self._compare([each for each in loss.targets if each.is_data])
            if loss.sequences is not None:
                targets, given, ignored = loss.sequences
                rows, tokens = targets.wait(), [each.wait() for each in given]
                self._tokens.add(rows, tokens, ignored)
                self._places.add(rows, tokens, rows != ignored)

    def _count(self, loss: _Loss) -> None:
        """Count a loss of which no target counts."""
        if self._ignoring is None:
            return
        value, ignored = float(loss.value.wait().ravel()[0]), {each.ignored for each in loss.targets}
        only = ignored.pop() if len(ignored) == 1 else None
        if only is None or (value != 0.0 and value == value) or any(each.range.wait()[0] for each in loss.targets):
            self._ignoring = None
            return
        losses, size, _ = self._ignoring
        self._ignoring = losses + 1, size + sum(each.size for each in loss.targets), only

    def _compare(self, targets: Sequence[_Target]) -> None:
        """Compare targets that the loader gave with those before."""
        if self._same is None or not targets:
            return
        batches, samples, low, high = self._same
        most_counted = 0
        for each in targets:
            count, least, most = each.range.wait().tolist()
            if not count:
                continue
            low, high, most_counted = min(low, least), max(high, most), max(most_counted, min(int(count), each.samples))
            if low != high or not np.isfinite(low):
                self._same = None
                return
        self._same = batches + 1, samples + most_counted, low, high

    def sightings(self) -> tuple[Sighting, ...]:
        self._take()
        texts = dict(self._texts())
        for kind, text in texts.items():
            self._frozen.setdefault(kind, text)
        return tuple(Sighting(kind, self._frozen[kind]) for kind in texts)

    def _texts(self) -> Iterator[tuple[str, str]]:
        if self._ignoring is not None and self._ignoring[0] >= _LOSSES:
            losses, size, ignored = self._ignoring
            every = f"all {size:,} targets of {losses} losses are {ignored}"
            yield "targets-ignored", f"no target counts: {every}, which the loss ignores"
        if self._same is not None:
            batches, samples, value, _ = self._same
            if self._are_enough(batches, samples, value):
                yield "targets-constant", f"the targets do not vary: those of {samples:,} samples are all {value:g}"
        token = self._tokens.never_a_target
        if token is not None:
            text = "follows the last target of each padded sequence, and is never a target itself"
            yield "end-never-target", f"token {token} {text}"
        if self._tokens.are_inputs:
            yield "targets-are-inputs", "each target is the token that the model is given at the same place"
        if self._places.are_mixed:
            parts = [f"{100 * share:.0f} % of the sequences {_PLACES[place]}" for place, share in self._places.shares.items()]
            yield "targets-misplaced", f"the targets do not follow the given tokens in one way: those of {enumerated(parts)}"
        elif self._places.shift is not None:
            yield "targets-misplaced", f"the targets {_PLACES[self._places.shift]}, not the next ones"

    def _are_enough(self, batches: int, samples: int, value: float) -> bool:
        loaders = self._around.loaders()
        if len(loaders) == 1 and batches >= batches_of(loaders[0]) > 1:
            return samples >= _OF_AN_EPOCH
        return samples >= (_SAMPLES if value else _SAMPLES_OF_ZERO)


def _memory(tensor: Tensor) -> int:
    """The address of the memory that a tensor is a view of."""
    return tensor.untyped_storage().data_ptr() if can_copy(tensor) else 0


def _are_tokens(tensor: Tensor, target: Tensor) -> bool:
    """Whether a tensor has an integer for each target, or one or two more in each row."""
    if not can_copy(tensor) or tensor.dim() != 2 or tensor.is_floating_point() or tensor.is_complex() or tensor.shape[1] < 4:
        return False
    rows, length = tensor.shape
    return target.numel() in (rows * length, rows * (length - 1), rows * (length - 2))


LOOKOUTS: Final[tuple[type[Lookout], ...]] = (TargetsLookout,)
"""The lookouts of this file."""
