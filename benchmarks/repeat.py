"""Timing a short call: many repetitions, the best of several tries."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Timing:
    """Seconds of one call.

    Args:
        best: the least over the tries; what the machine can do when nobody else is on it.
        median: over the tries.
    """

    best: float
    median: float


def repeat(call: Callable[[], Any], seconds: float = 0.1, tries: int = 5, before: Callable[[], Any] | None = None) -> Timing:
    """Time a call.

    Args:
        call: without arguments.
        seconds: about how long all tries take together.
        tries: how many figures there are to choose from.
        before: called before each call and not timed; then each call is timed on its own.

    Example:
        >>> repeat(lambda: None, seconds=0.001).best < 1.0
        True
    """
    started = time.perf_counter()
    if before is not None:
        before()
    call()
    once = max(time.perf_counter() - started, 1e-7)
    if before is not None:
        return _each(call, before, max(3, min(1000, int(seconds / once))))
    calls = max(1, int(seconds / tries / once))
    if once > seconds:
        tries = 2  # a slow one is not worth the wait
    figures = []
    for _ in range(tries):
        started = time.perf_counter()
        for _ in range(calls):
            call()
        figures.append((time.perf_counter() - started) / calls)
    return Timing(min(figures), statistics.median(figures))


def _each(call: Callable[[], Any], before: Callable[[], Any], calls: int) -> Timing:
    figures = []
    for _ in range(calls):
        before()
        started = time.perf_counter()
        call()
        figures.append(time.perf_counter() - started)
    return Timing(min(figures), statistics.median(figures))
