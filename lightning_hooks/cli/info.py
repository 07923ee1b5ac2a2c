"""The command `lightning-hooks info`: versions of dependencies, and the kernels in use."""

from __future__ import annotations

import importlib.metadata
import platform
from typing import Final

from lightning_hooks.cli.options import Parser

_DISTRIBUTIONS: Final = ("torch", "lightning", "pytorch-lightning", "torchmetrics", "tensorboard", "numpy", "triton")


def info(arguments: list[str]) -> None:
    """Print the versions and the kernels."""
    about = "Print the versions of the dependencies and the kernels in use. Add it to a report of a bug."
    Parser("info", about).parse_args(arguments)
    from lightning_hooks import backends
    from lightning_hooks.stats import kernels

    facts = {"lightning_hooks": version("lightning-hooks"), "python": platform.python_version()}
    facts |= {name: version(name) for name in _DISTRIBUTIONS}
    facts |= {"CPU kernel": kernels.in_use(), "CUDA kernel": kernels.in_use_on_cuda()}
    facts |= {"hooks": str(backends.hooks()), "tensor hooks": str(backends.tensor_hooks())}
    facts |= {"event files": str(backends.events())}
    facts["private names"] = _private_names()
    for name, value in facts.items():
        print(f"{name:<18}{value}")


def version(distribution: str) -> str:
    """The version of a distribution, or that it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _private_names() -> str:
    from lightning_hooks import private
    from lightning_hooks.hooks import HookSwitch

    # The first switch of a process looks up the private names of autograd. `private.LOST` then holds those that are missing.
    HookSwitch()
    if private.are_off():
        return f"off ({private.VARIABLE}=off)"
    lost = "; ".join(f"{name}: {what}" for name, what in private.LOST.items())
    return f"public fallbacks for {lost}" if lost else "in use"
