"""Places: how many tokens behind the given one the targets of each sequence are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from numpy.typing import NDArray

Rows = NDArray[Any]
MOST_PLACES: Final = 5
"""The number of places that are looked at: the same one, the next one, and later ones."""
_LEAST_TOKENS: Final = 4
"""The targets of a sequence that must be compared."""
_LEAST_ROWS: Final = 32
"""The sequences whose place must be known."""
_KNOWN: Final = 0.9
"""The share of sequences whose place must be known: other targets are no tokens at some place."""
_SHARE: Final = 0.1
"""The share of sequences from which on a place is none of chance."""


class Places:
    """At which place, counted from the given token, the targets of each sequence stand, if all of them stand at one.

    Example:
        >>> import numpy as np
        >>> places = Places()
        >>> given = np.random.default_rng(0).integers(0, 50, (40, 9))
        >>> places.add(given[:, 2:], [given], np.ones((40, 7), dtype=bool))
        >>> places.shift, places.shares
        (2, {2: 1.0})
    """

    def __init__(self) -> None:
        # The number of sequences whose targets all stand at one place, by that place.
        self._counted: Counter[int] = Counter()
        self._others = 0

    def add(self, targets: Rows, given: Sequence[Rows], counts: Rows) -> None:
        """Add sequences.

        Args:
            targets: integers [rows, length].
            given: what the model was given, each [rows, another length].
            counts: which targets count, bool [rows, length].
        """
        for row in range(len(targets)):
            fitting = {
                place for each in given for place in range(MOST_PLACES) if _fits(targets[row], each[row], counts[row], place)
            }
            if len(fitting) == 1:
                self._counted[fitting.pop()] += 1
            elif not fitting and counts[row].sum() >= _LEAST_TOKENS + MOST_PLACES:
                self._others += 1

    @property
    def shares(self) -> dict[int, float]:
        """The share of sequences of each place that is none of chance, by place; empty if the place of too few is known."""
        known = self._counted.total()
        if known < max(_LEAST_ROWS, _KNOWN * (known + self._others)):
            return {}
        shares = {place: self._counted[place] / known for place in sorted(self._counted)}
        return {place: share for place, share in shares.items() if share >= _SHARE}

    @property
    def shift(self) -> int | None:
        """The place of the targets of all sequences, if it is behind the next one; else None."""
        places = {*self._counted} if self.shares else set()
        (place,) = places if len(places) == 1 else (0,)
        return place if place > 1 else None

    @property
    def are_mixed(self) -> bool:
        """Whether some sequences have their targets at one place, and others at another."""
        return len(self.shares) > 1


def _fits(targets: Rows, tokens: Rows, counts: Rows, place: int) -> bool:
    """Whether all targets that count are the tokens so many places behind the given ones, as far as there are any."""
    shifted = tokens[place:]
    length = min(len(targets), len(shifted))
    counted = counts[:length]
    return int(counted.sum()) >= _LEAST_TOKENS and bool((targets[:length] == shifted[:length])[counted].all())
