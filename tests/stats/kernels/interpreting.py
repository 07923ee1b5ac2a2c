"""Checks of the Triton kernels in a process of their own, where Triton's interpreter runs them."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Mapping

import numpy as np
import triton.language as tl


def run(checks: Mapping[str, Callable[[], None]]) -> None:
    """Run the checks that the command names, and print one line for each.

    Args:
        checks: all of a module, by name.
    """
    _patch_once()
    np.seterr(invalid="ignore", over="ignore", divide="ignore")  # NaN and infinities are meant
    warnings.filterwarnings("ignore", "All-NaN slice")
    for name in sys.argv[1:]:
        checks[name]()
        print(f"{name} agrees")


def _patch_once() -> None:
    """Patch Triton's language once. Its interpreter does so for each call of a helper, which takes half of its time."""
    from triton.runtime import interpreter

    if not hasattr(interpreter, "_LangPatchScope"):
        return
    patch, kept = interpreter._patch_lang, {}

    def patch_once(function):
        modules = [value for value in function.__globals__.values() if inspect.ismodule(value)]
        languages = tl in modules, tl.core in modules
        if languages not in kept:
            kept[languages] = patch(function)
        return interpreter._LangPatchScope()  # which restores nothing

    interpreter._patch_lang = patch_once
