"""Generators of random numbers: where each stands, and whether it goes on where another process left it."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from lightning_hooks.engine.lookouts.surroundings import Surroundings
from lightning_hooks.errors import enumerated

_Words = NDArray[np.uint32]
Begins = Mapping[str, tuple[str, str]]
"""By the name of a generator its digest when a fit began, and the one before the first step."""
_FIRST: Final = 16
"""The number of next numbers by which two states are compared."""
_MARK: Final = 1 << 12
"""One number of so many is a mark: those that are divisible by it."""
_LOOKED: Final = 1 << 16
"""The numbers among which a generator that may have gone on looks for marks: sixteen are expected."""
_AHEAD: Final = 1 << 18
"""The numbers that a generator may have drawn since its state was saved, and is still known."""
_MATCHES: Final = 2
"""The number of marks that two generators must share."""


@dataclass(frozen=True)
class GeneratorState:
    """Where a generator stands.

    Args:
        name: in words.
        begin: a digest of the numbers that it was to draw when the fit began; empty if that is not known.
        first: the same before its first step, when loaders may have drawn.
        now: the same of its state.
        marks: which numbers follow the marks among those that it is to draw; empty for the generator of a device.
        offset: how many numbers the generator of a device has drawn since its seed; -1 for others.
    """

    name: str
    begin: str
    first: str
    now: str
    marks: tuple[int, ...] = ()
    offset: int = -1

    @property
    def was_used(self) -> bool:
        """Whether the fit is known to have drawn from it."""
        return self.begin not in ("", self.now)

    def continues(self, saved: GeneratorState) -> bool:
        """Whether it stands near a saved state, of the same numbers: a loader draws before the first step."""
        if self.offset >= 0:
            return self.now.partition(":")[0] == saved.now.partition(":")[0] and self.offset >= saved.offset >= 0
        return self.now == saved.now or len({*self.marks} & {*saved.marks}) >= _MATCHES


def states_of(around: Surroundings, begins: Begins, *, ahead: bool = False) -> tuple[GeneratorState, ...]:
    """The states of the generators of this process, of its devices and of its loaders; none of them draws.

    Args:
        around: the code around the model.
        begins: what is known of the begin of the fit.
        ahead: whether the numbers that come much later are noted, for a state that is saved.
    """
    known = [_state_of(name, draw, begins, _AHEAD if ahead else 0) for name, draw in _streams(around)]
    return (*known, *_of_devices(around, begins))


def begins_of(begin: Sequence[GeneratorState], first: Sequence[GeneratorState]) -> Begins:
    """What a checkpoint keeps of the begin of a fit.

    Args:
        begin: the states when the fit began, as far as they were known.
        first: those before its first step.
    """
    known = {each.name: each.now for each in begin}
    return {each.name: (known.get(each.name, each.now), each.now) for each in first}


def verdict(begins: Begins, states: Sequence[GeneratorState], saved: Sequence[GeneratorState]) -> str:
    """What is to be said of the generators of a fit that goes on; empty if nothing is.

    A fit whose generators are all others than before is as random as one that goes on, and few programs restore them.

    Args:
        begins: what is known of the begin of this fit.
        states: before its first step.
        saved: those of the checkpoint.
    """
    known = {each.name: each for each in saved if each.was_used}
    pairs = [(each, known[each.name]) for each in states if each.name in known]
    again = [each.name for each, before in pairs if begins.get(each.name) == (before.begin, before.first)]
    if again:
        verb = "stands" if len(again) == 1 else "stand"
        return f"{enumerated(again)} {verb} where the training once began, so that the same numbers are drawn again"
    continued = [each.name for each, before in pairs if each.continues(before)]
    others = [each.name for each, _ in pairs if each.name not in continued]
    if continued and others:
        verbs = ("goes on" if len(continued) == 1 else "go on"), ("does" if len(others) == 1 else "do")
        return f"{enumerated(continued)} {verbs[0]} from the saved state, but {enumerated(others)} {verbs[1]} not"
    return ""


def _state_of(name: str, draw: Callable[[int], _Words], begins: Begins, ahead: int) -> GeneratorState:
    words = draw(ahead + _LOOKED)
    now = blake2b(words[:_FIRST].tobytes(), digest_size=8).hexdigest()
    at = np.flatnonzero(words[:-1] % _MARK == 0)
    return GeneratorState(name, *begins.get(name, ("", "")), now, tuple(words[at + 1].tolist()))


def _streams(around: Surroundings) -> Iterator[tuple[str, Callable[[int], _Words]]]:
    """The generators on the host: the name of each, and a function that draws its next numbers from a copy."""
    yield "Python's generator", _of_python
    if "numpy.random" in sys.modules and np.random.get_state(legacy=False)["bit_generator"] == "MT19937":
        yield "NumPy's generator", _of_numpy
    yield "PyTorch's generator", lambda count: _of_torch(torch.get_rng_state(), count)
    for number, loader in enumerate(around.loaders()):
        samplers = [getattr(loader, name, None) for name in ("batch_sampler", "sampler")]
        holders = [loader, *samplers, getattr(samplers[0], "sampler", None)]
        held = dict.fromkeys(getattr(each, "generator", None) for each in holders)
        for at, each in enumerate(each for each in held if isinstance(each, torch.Generator)):
            if each.device.type == "cpu":
                yield f"generator {at} of loader {number}", _drawing(each)


def _drawing(generator: torch.Generator) -> Callable[[int], _Words]:
    return lambda count: _of_torch(generator.get_state(), count)


def _of_python(count: int) -> _Words:
    generator = random.Random()
    generator.setstate(random.getstate())
    return np.frombuffer(generator.randbytes(4 * count), dtype=np.uint32)


def _of_numpy(count: int) -> _Words:
    generator = np.random.RandomState()
    generator.set_state(np.random.get_state())
    return np.frombuffer(generator.bytes(4 * count), dtype=np.uint32)


def _of_torch(state: torch.Tensor, count: int) -> _Words:
    generator = torch.Generator()
    generator.set_state(state)
    words: _Words = torch.empty(count, dtype=torch.int32).random_(generator=generator).numpy().astype(np.uint32)
    return words


def _of_devices(around: Surroundings, begins: Begins) -> Iterator[GeneratorState]:
    """The generators of the CUDA devices of the model: their seed and their offset are numbers on the host."""
    model = around.model()
    parameters = () if model is None else model.parameters()
    devices = {each.device for each in parameters if each.device.type == "cuda"}
    for device in sorted(devices, key=str):
        # While a CUDA graph is captured, its generators cannot be asked.
        with suppress(RuntimeError):
            generator: Any = torch.cuda.default_generators[device.index]
            offset = int(generator.get_offset())
            name = f"the generator of {device}"
            yield GeneratorState(name, *begins.get(name, ("", "")), f"{generator.initial_seed()}:{offset}", (), offset)
