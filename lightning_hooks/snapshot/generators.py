"""The states of random number generators: those of the process, and those that an object holds."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import torch

# A name without a type, because the stubs of NumPy lack `get_bit_generator` and `set_bit_generator`.
_numpy: Any = np.random


class Generators:
    """The states of the generators of torch, of each CUDA device in use, of Python and of NumPy, as they are now.

    Args:
        earlier: states read before; that of NumPy is taken from them if nothing was drawn since, because reading it takes
            longer than reading all the others.
    """

    def __init__(self, earlier: Generators | None = None) -> None:
        self.torch = torch.get_rng_state()
        self.cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        self.python = random.getstate()
        self._memory = _numpy_memory()
        self.numpy: Any = None if earlier is None else earlier._still_numpy(self._memory)
        if self.numpy is None:
            self.numpy = _numpy.get_state(legacy=self._memory is not None)

    def restore(self) -> None:
        """Set the generators to these states."""
        torch.set_rng_state(self.torch)
        if self.cuda:
            torch.cuda.set_rng_state_all(self.cuda)
        random.setstate(self.python)
        _set_numpy(self.numpy)

    def _still_numpy(self, memory: _Memory | None) -> Any:
        """The state of NumPy's generator if its memory shows that it has not changed; else None."""
        # A generator may keep a normal number for the next call, and taking it does not change the memory.
        is_same = memory is not None and self._memory == memory and not self.numpy[3]
        return self.numpy if is_same else None


class _Memory(NamedTuple):
    """The address and the bytes of the state of a Mersenne Twister: its 624 words, and the number of words used."""

    address: int
    content: bytes


_TWISTER_BYTES: Final = 4 * 624 + 4


def _numpy_memory() -> _Memory | None:
    """The memory of NumPy's generator; None if the user has put one of another kind in its place."""
    generator = _numpy.get_bit_generator()
    if type(generator) is not np.random.MT19937:
        return None
    address = generator.ctypes.state_address
    return _Memory(address, ctypes.string_at(address, _TWISTER_BYTES))


def _set_numpy(state: Any) -> None:
    """Set NumPy's generator to a state; a new generator takes its place if the state is of another kind."""
    name = state["bit_generator"] if isinstance(state, dict) else state[0]
    kind = getattr(np.random, name, None)
    if type(_numpy.get_bit_generator()) is not kind and isinstance(kind, type) and issubclass(kind, np.random.BitGenerator):
        _numpy.set_bit_generator(kind())
    _numpy.set_state(state)


def saved_generator(value: Any) -> Callable[[], object] | None:
    """A function that sets a generator to the state that it has now; None if the value is not a generator.

    Example:
        >>> chance = random.Random(0)
        >>> restore = saved_generator(chance)
        >>> first = chance.random()
        >>> _ = restore()
        >>> chance.random() == first
        True
    """
    if isinstance(value, torch.Generator):
        return partial(value.set_state, value.get_state())
    if isinstance(value, np.random.Generator):
        return partial(setattr, value.bit_generator, "state", value.bit_generator.state)
    if isinstance(value, np.random.BitGenerator):
        return partial(setattr, value, "state", value.state)
    if isinstance(value, np.random.RandomState):
        return partial(value.set_state, value.get_state())
    if isinstance(value, random.Random):
        return partial(value.setstate, value.getstate())
    return None
