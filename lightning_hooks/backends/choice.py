"""The choice of an implementation for every part of the package, with a reason. No other module makes this choice.

| part           | choices                       | what it does                                                       |
|----------------|-------------------------------|--------------------------------------------------------------------|
| `kernel`       | `native`, `torch`             | measures tensors in host memory                                    |
| `hooks`        | `native`, `python`            | hooks that only read a tensor; in Python those that do everything  |
| `tensor_hooks` | `direct`, `register_hook`     | hooks the gradients of results, without or with a handle           |
| `events`       | `native`, `tensorboard`       | bytes and checksums of event files                                 |
| `cuda`         | `triton`, `reference`, `none` | measures tensors on a CUDA device                                  |

The environment variable LIGHTNING_HOOKS_KERNEL forces choices: `native` for `kernel`, `hooks` and `events`, `triton` for CUDA
devices, `reference` for all parts without compiled code, or one part (`hooks=python`). Several values are
separated by commas, and later ones override earlier ones. A forced choice that is not available raises. If no choice is forced,
the first available one serves.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType, ModuleType
from typing import Final, NamedTuple

from lightning_hooks.errors import RuleError, UnsupportedError
from lightning_hooks.private import tried

VARIABLE: Final = "LIGHTNING_HOOKS_KERNEL"
CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "kernel": ("native", "torch"),
    "hooks": ("native", "python"),
    "tensor_hooks": ("direct", "register_hook"),
    "events": ("native", "tensorboard"),
    "cuda": ("triton", "reference"),
}
WORDS: Final[Mapping[str, Mapping[str, str]]] = {
    "native": {"kernel": "native", "hooks": "native", "events": "native"},
    "reference": {"kernel": "torch", "hooks": "python", "events": "tensorboard", "cuda": "reference"},
    "triton": {"cuda": "triton"},
}


class Decision(NamedTuple):
    """The choice for a part.

    Args:
        serves: the chosen implementation.
        reason: a detail of the first choice, such as its instruction set, or why the first choice does not serve.
        module: the module of the first choice; None if it does not serve, or has none.
    """

    serves: str
    reason: str
    module: ModuleType | None = None

    def __str__(self) -> str:
        return f"{self.serves} ({self.reason})"


def forced() -> Mapping[str, str]:
    """The parts whose choice the environment variable forces.

    Raises:
        RuleError: the variable names an unknown choice.
    """
    return _parsed(os.environ.get(VARIABLE, ""))


@cache
def _parsed(value: str) -> Mapping[str, str]:
    choices: dict[str, str] = {}
    for word in filter(None, (each.strip() for each in value.split(","))):
        part, _, choice = word.partition("=")
        if word in WORDS:
            choices |= WORDS[word]
        elif choice in CHOICES.get(part, ()):
            choices[part] = choice
        else:
            words = ", ".join(map(repr, WORDS))
            pairs = ", ".join(f"'{name}={choice}'" for name, values in CHOICES.items() for choice in values)
            raise RuleError(f"{VARIABLE}={value!r}: choose from {words}, {pairs}; leave it unset for the default")
    return MappingProxyType(choices)


@cache
def kernel(moments: tuple[str, ...]) -> Decision:
    """The choice of the kernel that measures tensors in host memory.

    Args:
        moments: the names of the moments in a row. A compiled kernel with other moments is rejected.

    Raises:
        UnsupportedError: the environment variable forces the compiled kernel, which is not available.
    """

    def load() -> tuple[ModuleType, str]:
        from lightning_hooks.backends import native

        if tuple(native.MOMENTS.split()) != moments:
            raise ImportError(f"it was built for other moments: {native.MOMENTS}")
        return native, native.instructions()

    return _decide("kernel", load)


@cache
def hooks() -> Decision:
    """The choice of the implementation of hooks that only read."""
    return _decide("hooks", _extension)


@cache
def tensor_hooks() -> Decision:
    """The choice of how compiled hooks hook the gradients of results.

    Runs a backward pass, which starts threads of autograd: a process should not be forked afterwards.
    """

    def load() -> tuple[None, str]:
        from lightning_hooks.backends.probes import hook_dictionary

        if hooks().module is None:
            raise ImportError("the hooks are not compiled")
        lost = "Tensor.register_hook hooks the gradients of results: 3 to 5 microseconds more for each"
        tried("Node._register_hook_dict", hook_dictionary, lost)
        return None, "a backward pass has called one"

    return _decide("tensor_hooks", load)


@cache
def events() -> Decision:
    """The choice of the encoder of event files. Reading a run calls this function too, so it must not import torch."""
    return _decide("events", _extension)


def cuda(load: Callable[[], tuple[ModuleType, str]]) -> Decision:
    """The choice of the kernel that measures tensors on a CUDA device.

    Args:
        load: returns the kernel in Triton, after a test measurement, and the version of Triton. It raises if Triton does not
            work.

    Raises:
        UnsupportedError: the environment variable forces Triton, which does not work.
    """
    import torch

    if torch.cuda.is_available():
        return _decide("cuda", load)
    choice = forced().get("cuda")
    if choice == "triton":
        raise UnsupportedError(f"{_forced_by()}, but torch sees no CUDA device; unset the variable")
    return Decision("reference", _forced_by()) if choice else Decision("none", "torch sees no CUDA device")


def _extension() -> tuple[ModuleType, str]:
    from lightning_hooks.backends import _native

    return _native, "compiled"


def _decide(part: str, load: Callable[[], tuple[ModuleType | None, str]]) -> Decision:
    """The first choice of a part if it loads, else the second one."""
    first, second = CHOICES[part]
    choice = forced().get(part)
    if choice == second:
        return Decision(second, _forced_by())
    try:
        module, words = load()
    except Exception as error:
        why = next(iter(str(error).strip().splitlines()), type(error).__name__)
        if choice == first:
            raise UnsupportedError(f"{_forced_by()}, but there is {_MISSING[first]}: {why}. {_HINTS[first]}") from error
        return Decision(second, f"{_MISSING[first]}: {why}")
    return Decision(first, words, module)


_MISSING: Final = {"native": "no compiled extension", "triton": "no Triton", "direct": "no dictionary of hooks"}
_HINTS: Final = {
    "native": "It is built when the package is installed where a C++ compiler is found; unset the variable to run without it",
    "triton": "Unset the variable to measure with plain torch there",
    "direct": "Unset the variable to use Tensor.register_hook there",
}


def _forced_by() -> str:
    return f"{VARIABLE}={os.environ.get(VARIABLE, '')}"
