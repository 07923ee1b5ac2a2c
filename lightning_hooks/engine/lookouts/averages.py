"""Looks at copies: integers that were averaged, statistics that are not kept up, weights that hardly follow or never."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from time import perf_counter
from typing import ClassVar, Final

import torch
from torch import Tensor

from lightning_hooks.engine.lookouts.copies import Copy, copies_of, references_to_parts
from lightning_hooks.engine.lookouts.surroundings import Surroundings
from lightning_hooks.engine.lookouts.ways import Ways
from lightning_hooks.engine.lookouts.writes import Writes, writes_of
from lightning_hooks.engine.participants.lookout import Lookout
from lightning_hooks.errors import counted
from lightning_hooks.health.usage import is_named_copy
from lightning_hooks.records.facts import Sighting
from lightning_hooks.stats.host_copy import HostCopy, begin_copy

_SEARCHES: Final = (2, 50, 200)
"""The steps at which copies are searched for, as long as there is none and the number of objects of a class has changed."""
_LONG: Final = 0.5
"""Seconds of a search after which there is no other."""
_LAGS: Final = 0.1
"""The share of the way of the model below which its average lags."""
_ALONG: Final = 0.5
"""The least cosine between the ways of a model and of its average."""
_FIRST: Final = 15
"""The first steps, which are all looked at."""
_EVERY: Final = 25
"""Steps between two looks after the first ones."""
_LEAST: Final = 8
"""The number of looks at which a copy must have been written to."""
_TARGETS: Final = ("target", "targets", "targ", "tgt")
"""Words that say that a copy is to be synchronised with its source."""
_COUNTER: Final = "num_batches_tracked"
_STATISTICS: Final = ("running_mean", "running_var", _COUNTER)


@dataclass
class _Known:
    """What is known of a copy.

    Args:
        copy: it.
        begin: the writes to each of its tensors and to those of its source at the first look.
        last: the same at the last look.
        written: how many looks have found a tensor of the copy or of the source written to since the look before.
        compared: the names of integer buffers, and the number of elements of each in which copy and source differ.
        differ: that number of each, as far as it has arrived on the host.
        looks: how many there were.
        ways: of the copy and of its source.
        first: the step of the first look.
    """

    copy: Copy
    ways: Ways
    first: int = 0
    begin: dict[str, Writes] = field(default_factory=dict)
    last: dict[str, Writes] = field(default_factory=dict)
    written: dict[str, int] = field(default_factory=dict)
    compared: tuple[list[str], HostCopy] | None = None
    differ: dict[str, int] = field(default_factory=dict)
    looks: int = 0

    def count(self, key: str) -> int:
        """The number of looks at which a tensor had been written to."""
        return self.written.get(key, 0)


class AveragesLookout(Lookout):
    """Looks at copies of the model, or of parts of it, that code averages or writes to, and that no optimizer trains.

    PyTorch counts the writes to a tensor on the host. Only integer buffers that code writes in the copy and never in the model
    are compared, on their device, and the result is read at a later step.
    """

    kinds: ClassVar[tuple[str, ...]] = (
        *("averaged-integers", "average-without-statistics", "average-lags"),
        "target-stands-still",
    )

    def __init__(self, surroundings: Surroundings) -> None:
        self._around = surroundings
        self._known: list[_Known] = []
        self._may_search = True
        self._references: tuple[int, ...] = ()

    def step_key(self, step: int, stage: str) -> Hashable | None:
        looks = step in _SEARCHES or (self._known and (step < _FIRST or step % _EVERY == 0))
        return "averages" if stage == "train" and looks else None

    def begin_step(self, step: int, stage: str, reporting: bool) -> None:
        if not self._known and step in _SEARCHES and self._may_search:
            self._search(step)
        for known in self._known:
            _look(known)
            _compare(known)
            if step % _EVERY == 0:
                known.ways.look(step)

    def _search(self, step: int) -> None:
        """Search for copies, unless no object has been made since the last search."""
        references = references_to_parts(self._around)
        if references == self._references:
            return
        begin = perf_counter()
        self._known = [_Known(each, Ways(each), step) for each in copies_of(self._around)]
        self._may_search = perf_counter() - begin < _LONG
        self._references = references

    def left(self) -> None:
        self._known = []

    def sightings(self) -> tuple[Sighting, ...]:
        looks = (_integers, _statistics, _lag, _standstill)
        return tuple(sighting for known in self._known for look in looks for sighting in look(known))


def _look(known: _Known) -> None:
    """Note which tensors were written to since the last look."""
    now: dict[str, Writes] = {}
    # One parameter stands for all: an average is one of all of them.
    of_kinds = ("parameter", islice(known.copy.parameters(), 1)), ("buffer", known.copy.buffers())
    for kind, pairs in of_kinds:
        for name, own, source in pairs:
            now[f"{kind} {name}"], now[f"source {kind} {name}"] = writes_of(own), writes_of(source)
    known.looks += 1
    if not known.begin:
        known.begin = now
    for key, writes in now.items():
        if key in known.last and known.last[key] != writes:
            known.written[key] = known.count(key) + 1
    known.last = now


def _compare(known: _Known) -> None:
    """Compare integer buffers that were written to in the copy only; read what the look before has compared."""
    if known.compared is not None:
        names, numbers = known.compared
        if not (numbers.ready or numbers.has_arrived):
            return
        known.differ, known.compared = dict(zip(names, numbers.wait().tolist(), strict=True)), None
    buffers = [(name, own, source) for name, own, source in known.copy.buffers() if _is_suspect(known, name, own, source)]
    if buffers:
        with torch.no_grad():
            numbers_of = torch.stack([(own != source).sum() for _, own, source in buffers])
        known.compared = [name for name, _, _ in buffers], begin_copy(numbers_of)


def _is_suspect(known: _Known, name: str, own: Tensor, source: Tensor) -> bool:
    key = f"buffer {name}"
    is_compared = type(own) is type(source) is Tensor and own.dtype == source.dtype and own.device == source.device
    if not is_compared or not _is_integer(own) or name.endswith(_COUNTER):
        return False
    return known.count(key) > 0 and known.count(f"source {key}") == 0


def _is_integer(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)


def _integers(known: _Known) -> Iterator[Sighting]:
    """The integer buffers in which an averaged copy differs from its source, whose own never change."""
    sizes = {name: own.numel() for name, own, _ in known.copy.buffers()}
    differ = {name: count for name, count in known.differ.items() if count and known.count(f"source buffer {name}") == 0}
    for name, count in differ.items():
        text = (
            f"{known.copy!r} has other integers in the buffer `{name.rpartition('.')[2]}`, which the model never changes: "
            f"{count} of {sizes.get(name, count)} differ, as after averaging and rounding down"
        )
        yield Sighting("averaged-integers", text, _rows(known, [name]), measured=float(count))


def _statistics(known: _Known) -> Iterator[Sighting]:
    """The norms whose running statistics stay as they are in a copy of which the weights follow the model."""
    follows = _follows(known)
    names = [key.partition(" ")[2] for key in known.begin if key.startswith("buffer ") and key.endswith(_COUNTER)]
    still = [name for name in names if _stands_still(known, name.rpartition(".")[0])]
    if follows >= _LEAST and still:
        always = follows == known.looks - 1
        which = "its norms" if len(still) == len(names) else f"{len(still)} of its {counted(len(names), 'norm')}"
        text = (
            f"{known.copy!r} has weights that follow the model{' at each step' if always else ''}, but the running statistics "
            f"of {which} are those with which it began"
        )
        yield Sighting("average-without-statistics", text, _rows(known, still), is_fact=always, measured=float(len(still)))


def _lag(known: _Known) -> Iterator[Sighting]:
    """A copy that began as its source, is written to and hardly follows."""
    way, follows = known.ways.last, _follows(known)
    if way is None or not way.is_of_a_copy or not follows or way.own >= _LAGS * way.source or way.cosine < _ALONG:
        return
    share = way.own / way.source
    text = (
        f"{known.copy!r} has gone {100 * share:.2g} % of the way that the model has gone since its first steps: so slow an "
        "average is still the weights of the beginning"
    )
    yield Sighting("average-lags", text, (), is_fact=not known.copy.name, measured=share, threshold=_LAGS)


def _standstill(known: _Known) -> Iterator[Sighting]:
    """A copy that is called a target, began as its source, and has never changed while its source has moved."""
    way, name = known.ways.last, known.copy.name or known.copy.variable
    # Code may write through `.data`, whose writes PyTorch counts elsewhere. So the numbers are compared too.
    if way is None or not way.is_of_a_copy or way.own > 0 or not is_named_copy(name, _TARGETS) or _is_written(known):
        return
    text = (
        f"the target network `{name}` has not been synchronised: at step {way.step} it is what it was at step {known.first}, "
        f"and its source has moved by {100 * way.source / way.size:.2g} % of its weights"
    )
    rows = (known.copy.name,) if known.copy.name else ()
    yield Sighting("target-stands-still", text, rows, is_fact=False, measured=float(way.step - known.first))


def _is_written(known: _Known) -> bool:
    """Whether a parameter of the copy has been written to since the first look."""
    first = next(iter(known.copy.parameters()), None)
    return first is None or known.begin.get(f"parameter {first[0]}") != writes_of(first[1])


def _follows(known: _Known) -> int:
    """The number of looks at which the weights of a copy had been written to."""
    return max((count for key, count in known.written.items() if key.startswith("parameter ")), default=0)


def _stands_still(known: _Known, norm: str) -> bool:
    """Whether the statistics of a norm were never written to in the copy, and move in the source."""
    keys = [key for each in _STATISTICS if (key := f"buffer {norm}.{each}".replace(" .", " ")) in known.begin]
    moves = known.count(f"source buffer {norm}.{_COUNTER}".replace(" .", " ")) >= _LEAST
    return moves and all(known.begin[key] == known.last.get(key) for key in keys)


def _rows(known: _Known, buffers: list[str]) -> tuple[str, ...]:
    """The names of the modules in the model whose buffers these are, by their names in the source of a copy."""
    owners = (each.rpartition(".")[0] for each in buffers)
    rows = (".".join(part for part in (known.copy.source_name, owner) if part) for owner in owners)
    return tuple(dict.fromkeys(rows))


LOOKOUTS: Final[tuple[type[Lookout], ...]] = (AveragesLookout,)
"""The lookouts of this file."""
