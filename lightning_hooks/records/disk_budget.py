"""The budget of a run on disk: how many bytes step views may take, and how many steps one view on disk merges."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from lightning_hooks.errors import RuleError, shown

AUTO: Final = "auto"
"""The value of the option `disk` that stands for the value of another monitor of the run, or else for `DISK`."""
DISK: Final = 256_000_000
"""The budget by default, in bytes."""
FREE: Final = 7 / 8
"""The share of the budget up to which every step is written. Of the default budget it holds 10,000 steps of 500 rows with all
their charts and histograms: such a step of a small GPT takes 22 kB."""
_DOUBLED_AFTER: Final = 1 / 8
"""The share of what is left after which windows get twice as long, so that the budget lasts for a run of any length."""
_SOONER: Final = 1 / 32
"""The same if the end of the run is known: windows then soon have the length that the steps to come need, and keep it."""
_AROUND: Final = 1 / 4
"""The share of what is left that single steps around one finding may take."""
_SPARE: Final = 1 / 64
"""The share of the budget that is planned for the end of a run: its last views, and the text of its findings."""
_MARGIN: Final = 0.8
"""The share of what is left that is planned with if the end of the run is known."""
_LONGEST: Final = 40
"""Windows hold at most two to the power of this number of steps."""
_LEAST: Final = 1_000_000
_UNITS: Final = {"kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_TEXT: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]+)")

DiskSpec = float | str | None
"""A budget on disk: megabytes, a text such as `256 MB`, `auto`, or None for no limit."""


def bytes_of(value: Any) -> int | None:
    """The option `disk` in bytes; None for no limit, and `DISK` for `auto`.

    Args:
        value: a number of megabytes (10**6 bytes), a text with kB, MB, GB or TB, `auto`, or None.

    Raises:
        RuleError: the value is something else, or less than 1 MB.

    Example:
        >>> bytes_of(500), bytes_of("1.5 GB"), bytes_of(None)
        (500000000, 1500000000, None)
    """
    if value is None:
        return None
    if isinstance(value, str) and value == AUTO:
        return DISK
    found = None
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        found = value * 10**6
    elif isinstance(value, str) and (match := _TEXT.fullmatch(value.strip())) is not None:
        unit = next((unit for unit in _UNITS if unit.lower() == match[2].lower()), None)
        found = None if unit is None else float(match[1]) * _UNITS[unit]
    if found is None or found < _LEAST or found >= 2**62:
        raise RuleError(
            "disk must be a number of megabytes or a text such as '256 MB' or '1.5 GB', at least 1 MB, or None to write every "
            f"step, got {shown(value)}"
        )
    return round(found)


@dataclass(frozen=True)
class DiskState:
    """What a checkpoint keeps of a budget.

    Args:
        written: the bytes that count, so far.
        rate: the bytes of a step while every step was written; 0.0 while that is not known.

    Raises:
        RuleError: a value that no budget has saved.
    """

    written: int = 0
    rate: float = 0.0

    def __post_init__(self) -> None:
        if self.written < 0 or not 0 <= self.rate < math.inf:
            raise RuleError(f"disk must have written and rate of at least 0, got {self.written} and {self.rate}")


class DiskBudget:
    """What a run has written of its step views, and how many steps the next view on disk merges.

    Every step is written until `FREE` of the budget is used. From then on windows have 2, 4, 8 … steps: they double each time
    an eighth of what is left is used. If it is known how many steps are to come, windows grow no longer than these need.

    Args:
        limit: in bytes; None for no limit.
        say: is given one sentence when windows begin.

    Attributes:
        limit: in bytes; None for no limit.
        written: the bytes that count, so far.
        findings: how many findings have asked for the steps around them.
        size: of the last view, in bytes.

    Example:
        >>> budget = DiskBudget(8_000_000)
        >>> budget.level(0, None), budget.wrote(7_000_001), budget.level(1, None)
        (0, None, 1)
    """

    def __init__(self, limit: int | None = DISK, say: Callable[[str], None] | None = None) -> None:
        self.limit = limit
        self.written = 0
        self.findings = 0
        self.size = 0
        self._say = say
        self._rate = 0.0
        self._level = 0
        self._since: tuple[int, int] | None = None  # the first step that was seen, and what was written before it

    def wrote(self, size: int, *, is_view: bool = True) -> None:
        """Count the bytes of a view, or of what is written beside the views."""
        self.written += size
        if is_view:
            self.size = size

    def note_finding(self) -> None:
        """Ask for single steps around the step that was written last."""
        self.findings += 1

    def room(self, most: int) -> int:
        """How many single views may be written apart from windows: as many as `most`, in a share of what is left."""
        if self.limit is None or not self.size:
            return most
        return max(0, min(most, math.floor(_AROUND * self._left(self.limit) / self.size)))

    def level(self, step: int, end: int | None) -> int:
        """How often the number of steps in a window is doubled; 0 if every step is written. It never decreases.

        Args:
            step: the step that is written next.
            end: the number of steps after which the run ends; None if it is not known.
        """
        if self.limit is None:
            return 0
        if self._since is None or step < self._since[0]:
            self._since = step, self.written
        if self.written < FREE * self.limit:
            return self._level
        if not self._rate:
            first, before = self._since
            self._rate = (self.written - before) / max(step - first, 1)
        doubled_after = _DOUBLED_AFTER if end is None else _SOONER
        level = min(self._by_share(self.limit, doubled_after), self._by_end(self.limit, step, end))
        if level > self._level:
            if not self._level and self._say is not None:
                self._say(_sentence(self.limit, self.written, step))
            self._level = level
        return self._level

    def _left(self, limit: int) -> float:
        """The bytes that windows may still take."""
        return (1 - _SPARE) * limit - self.written

    def _by_share(self, limit: int, doubled_after: float) -> int:
        """The level at which windows have doubled each time this share of what was left is used."""
        left = self._left(limit) / ((1 - _SPARE - FREE) * limit)
        if left <= 0:
            return _LONGEST
        return min(_LONGEST, 1 + math.floor(math.log(left) / math.log(1 - doubled_after)))

    def _by_end(self, limit: int, step: int, end: int | None) -> int:
        """The least level at which the steps to come fit into what is left."""
        left = _MARGIN * self._left(limit)
        if end is None or left <= 0:
            return _LONGEST
        times = max(end - step, 0) * self._rate / left
        return 0 if times <= 1 else min(_LONGEST, math.ceil(math.log2(times)))

    def state(self) -> DiskState:
        """The state for a checkpoint."""
        return DiskState(self.written, self._rate)

    def continue_from(self, saved: DiskState) -> None:
        """Continue from a checkpoint. Of several monitors of a run, what the one with the most bytes has saved counts."""
        if saved.written > self.written:
            self.written, self._rate, self._since = saved.written, saved.rate, None


def _sentence(limit: int, written: int, step: int) -> str:
    return (
        f"lightning_hooks has written {shown_size(written)} and keeps this run within disk={shown_size(limit)!r}: from step "
        f"{step:,} on the files hold windows of steps, merged exactly, while rules and consumers see every step; disk=None "
        "writes every step"
    )


def shown_size(size: int) -> str:
    """A number of bytes in words.

    Example:
        >>> shown_size(256_000_000), shown_size(1_500_000_000)
        ('256 MB', '1.5 GB')
    """
    unit, factor = next(((unit, factor) for unit, factor in reversed(_UNITS.items()) if size >= factor), ("kB", 1000))
    return f"{size / factor:.3g} {unit}"
