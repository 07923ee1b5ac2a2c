"""Looks whether batches come again: in a row, in each epoch, or always the same one."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from typing import Any, ClassVar, Final

from lightning_hooks.engine.lookouts.entry import Entry
from lightning_hooks.engine.lookouts.fingerprints import Fingerprint, fingerprint_of
from lightning_hooks.engine.lookouts.loaders import batches_of, is_stream, shuffles
from lightning_hooks.engine.lookouts.repeats import MOST, Repeats
from lightning_hooks.engine.lookouts.surroundings import Surroundings
from lightning_hooks.engine.participants.lookout import Lookout
from lightning_hooks.hooks import Handles, HookSwitch
from lightning_hooks.nested.tensors import tensors_of
from lightning_hooks.records.facts import Sighting


class BatchesLookout(Lookout):
    """Looks at a few elements of each batch, which the next step or a later one compares with those of the batches before.

    In a plain loop, in which nobody knows the batches, it looks at what the root module is given first in each step.
    """

    kinds: ClassVar[tuple[str, ...]] = (
        *("workers-repeat", "epochs-repeat", "batch-stuck"),
        *("batches-in-a-row", "batches-repeat"),
    )

    def __init__(self, surroundings: Surroundings) -> None:
        self._around = surroundings
        self._repeats = Repeats()
        self._pending: deque[tuple[int, Fingerprint]] = deque()
        self._step = 0
        self._entry = Entry(surroundings, self.saw_batch)

    def step_key(self, step: int, stage: str) -> Hashable | None:
        return "batches" if stage == "train" and self._repeats.count < MOST and not self._around.overfits else None

    def begin_step(self, step: int, stage: str, reporting: bool) -> None:
        self._step = step
        self._entry.begin_step()

    def joined(self, switch: HookSwitch, handles: Handles) -> None:
        self._entry.look_up()

    def register(self, key: Any, switch: HookSwitch, handles: Handles) -> None:
        self._entry.register(switch, handles)

    def saw_batch(self, batch: Any) -> None:
        self._take()
        fingerprint = fingerprint_of(tensors_of(batch))
        if fingerprint is not None:
            self._pending.append((self._step, fingerprint))

    def _take(self) -> None:
        """Compare the batches that have arrived from the device."""
        while self._pending and self._pending[0][1].has_arrived:
            step, fingerprint = self._pending.popleft()
            self._repeats.add(fingerprint.value(), step)

    def left(self) -> None:
        self._pending.clear()

    def sightings(self) -> tuple[Sighting, ...]:
        self._take()
        return tuple(self._seen())

    def _seen(self) -> Iterator[Sighting]:
        repeats = self._repeats
        if repeats.times > 1:
            yield self._in_a_row(repeats.times)
        if repeats.period:
            yield self._in_each_epoch(repeats.period)
        since = repeats.stuck_since
        if since is not None:
            kind = "batch-stuck" if self._around.knows_batches else "batches-repeat"
            yield Sighting(kind, f"all batches since step {since} are the same one, and those before it were others")
        if repeats.are_all_the_same and any(batches_of(each) > 1 for each in self._around.loaders()):
            yield Sighting("batches-repeat", "all batches are the same one, although the loader has several")

    def _in_a_row(self, times: int) -> Sighting:
        text = f"each batch comes {times} times in a row"
        if any(is_stream(each) and each.num_workers == times for each in self._around.loaders()):
            return Sighting("workers-repeat", f"{text}: each of the {times} workers of the loader reads all of its data set")
        return Sighting("batches-in-a-row", text)

    def _in_each_epoch(self, period: int) -> Sighting:
        if any(map(shuffles, self._around.loaders())):
            text = f"the loader shuffles, but the same {period} batches come again and again in the same order"
            return Sighting("epochs-repeat", text)
        return Sighting("batches-repeat", f"the same {period} batches come again and again in the same order")


LOOKOUTS: Final[tuple[type[Lookout], ...]] = (BatchesLookout,)
"""The lookouts of this file."""
