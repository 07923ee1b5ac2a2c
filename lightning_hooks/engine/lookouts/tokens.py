"""Compares the tokens that a model is given with those that it is to predict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[Any]
_LEAST_ROWS: Final = 20
"""The padded sequences that must have been seen."""
_LEAST_TOKENS: Final = 200
"""The targets that must have been compared."""
_SHARE: Final = 0.99
"""The share of targets that must be the next token, for a model to be one of language."""


class Tokens:
    """What is known of the tokens of the first steps.

    Example:
        >>> tokens = Tokens()
        >>> for ending in (3, 4, 5, 6) * 5:
        ...     given = np.array([[7, 8, ending, 1, 1, 1]])
        ...     tokens.add(given[:, 1:], [given[:, :-1]], ignored=1)
        >>> tokens.never_a_target, tokens.are_inputs
        (1, False)
    """

    def __init__(self) -> None:
        self._counted: Counter[int] = Counter()  # the targets that count
        self._endings: Counter[int] = Counter()  # the last target of each padded sequence
        self._followers: Counter[int] = Counter()  # the token that follows it
        self._same = self._next = self._compared = 0

    def add(self, targets: Rows, given: Sequence[Rows], ignored: int) -> None:
        """Add sequences.

        Args:
            targets: integers [rows, length].
            given: what the model was given, each [rows, another length]; those are compared that fit best.
            ignored: the target that does not count.
        """
        counts = targets != ignored
        if not counts.any():
            return
        found = [(_equal(targets, each, counts, 1), _equal(targets, each, counts, 0), each) for each in given]
        following, same, tokens = max(found, key=lambda each: max(each[0], each[1]))
        self._compared += int(counts.sum())
        self._next += following
        self._same += same
        self._counted.update(targets[counts].tolist())
        for row in range(len(targets)):
            last = int(np.flatnonzero(counts[row])[-1]) if counts[row].any() else len(targets[row])
            if last + 1 < targets.shape[1] and last + 2 < tokens.shape[1]:
                self._endings[int(targets[row, last])] += 1
                self._followers[int(tokens[row, last + 2])] += 1

    @property
    def never_a_target(self) -> int | None:
        """The token that follows the last target of each padded sequence and is no target; None if there is none.

        The last targets must vary: where all are the same token, that token ends the sequences.
        """
        rows = self._endings.total()
        if rows < _LEAST_ROWS or self._next < _SHARE * self._compared or len(self._followers) > 1:
            return None
        (follower,) = self._followers
        varies = len(self._endings) > 2 and max(self._endings.values()) < rows / 2
        return follower if varies and follower not in self._counted else None

    @property
    def are_inputs(self) -> bool:
        """Whether each target is the token at its own place, and not the next one."""
        is_enough = self._compared >= _LEAST_TOKENS and len(self._counted) > 3
        return is_enough and self._same == self._compared and self._next < _SHARE * self._compared


def _equal(targets: Rows, tokens: Rows, counts: Rows, shift: int) -> int:
    """The number of targets that are the token at their place, or a number of places behind it."""
    shifted = tokens[:, shift:]
    length = min(targets.shape[1], shifted.shape[1])
    equal: int = ((targets[:, :length] == shifted[:, :length]) & counts[:, :length]).sum()
    return int(equal)
