"""Tells code of installed libraries, which users do not change, from their own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from torch import nn

_INSTALLED: Final = {"site-packages", "dist-packages"}
"""The folders into which packages are installed."""


def is_of_torch(module: nn.Module) -> bool:
    """Whether the `forward` of a module is code of torch or of a Lightning, whose layers everybody composes."""
    return _top(module) in ("torch", "lightning", "pytorch_lightning")


def is_of_library(module: nn.Module) -> bool:
    """Whether the `forward` of a module is code of an installed library other than torch and Lightning.

    Example:
        >>> is_of_library(nn.Linear(1, 1))
        False
    """
    file = getattr(sys.modules.get(_source(module)), "__file__", None)
    return not is_of_torch(module) and file is not None and not _INSTALLED.isdisjoint(Path(file).parts)


def _source(module: nn.Module) -> str:
    return str(getattr(type(module).forward, "__module__", ""))


def _top(module: nn.Module) -> str:
    return _source(module).partition(".")[0]
