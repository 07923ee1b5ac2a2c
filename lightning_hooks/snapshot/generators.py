"""The states of random number generators: those of the process, and those that an object holds."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch


class Generators:
    """The states of the generators of torch, of each CUDA device in use, of Python and of NumPy, as they are now."""

    def __init__(self) -> None:
        self.torch = torch.get_rng_state()
        self.cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        self.python = random.getstate()
        self.numpy: Any = np.random.get_state(legacy=True)

    def restore(self) -> None:
        """Set the generators to these states."""
        torch.set_rng_state(self.torch)
        if self.cuda:
            torch.cuda.set_rng_state_all(self.cuda)
        random.setstate(self.python)
        np.random.set_state(self.numpy)


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
    if isinstance(value, np.random.RandomState):
        return partial(value.set_state, value.get_state())
    if isinstance(value, random.Random):
        return partial(value.setstate, value.getstate())
    return None
