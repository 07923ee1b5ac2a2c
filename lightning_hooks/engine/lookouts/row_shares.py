"""Which rows of a batch hold most of a gradient, or numbers that are not finite, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.errors import enumerated

Norms = NDArray[np.float64]
Bad = NDArray[np.bool_]
HALF: Final = 0.5
"""The share of the squared norm that few rows must hold to stand out."""
_FEW: Final = 3
"""So many rows are few in a batch of at least eight times as many."""
_SHARE: Final = 0.05
"""The share of the rows of a large batch that are few."""
_LEAST: Final = 4
"""The smallest number of rows of which any can stand out."""
_LARGE: Final = 0.1
"""A further row with this share of the squared norm is named, too."""
_SMALL: Final = 8
"""A batch with fewer rows than this is small."""
_NEARLY_ALL: Final = 0.8
"""The share that one row of a small batch must hold."""


_ALL: Final = 0.99


@dataclass
class Part:
    """The rows of one batch.

    Args:
        norms: the norm of the gradient of each row.
        bad_inputs: the rows whose input is not finite; None if nobody has looked.
        samples: the indices of the rows in the data set; None if they are not known.
    """

    norms: Norms
    bad_inputs: Bad | None = None
    samples: Sequence[object] | None = None


@dataclass
class Rows:
    """The rows of the batches of one step.

    Args:
        step: the number of the step.
        module: the name of the module whose output has the gradient.
        parts: of each batch.

    Example:
        >>> norms = np.ones(32)
        >>> norms[7] = 20.0
        >>> Rows(41, "head", [Part(norms, samples=range(100, 132))]).text()
        'row 7 of the 32 in the batch of step 41 (sample 107) holds 93 % of the squared gradient at head'
    """

    step: int
    module: str
    parts: list[Part] = field(default_factory=list)

    def standing_out(self) -> tuple[list[int], float]:
        """The few rows, counted over all batches, that hold most of the squared norm, and their share; no rows if none do."""
        squares = np.concatenate([part.norms for part in self.parts]) ** 2
        total, count = float(squares.sum()), len(squares)
        if count < _LEAST or not (np.isfinite(total) and total > 0):
            return [], 0.0
        order = np.argsort(-squares, kind="stable")
        held = np.cumsum(squares[order]) / total
        needed = int(np.searchsorted(held, HALF, side="right")) + 1
        few = max(1, min(_FEW, count // _SMALL), int(_SHARE * count))
        if needed > few or (count < _SMALL and held[0] < _NEARLY_ALL):
            return [], 0.0
        further = int((squares[order[needed:few]] >= _LARGE * total).sum())
        return sorted(order[: needed + further].tolist()), float(held[needed + further - 1])

    def text(self) -> str:
        """What the rows show, in words without a full stop; empty if they show nothing."""
        norms = np.concatenate([part.norms for part in self.parts])
        if len(norms) < _LEAST:
            return ""
        bad = ~np.isfinite(norms)
        if bad.any():
            return self._not_finite(np.flatnonzero(bad).tolist(), len(norms))
        rows, share = self.standing_out()
        if rows:
            verb = "holds" if len(rows) == 1 else "hold"
            much = f"{100 * share:.0f} %" if share < _ALL else f"more than {100 * _ALL:.0f} %"
            return f"{self._named(rows)} {verb} {much} of the squared gradient at {self._where}"
        squares = np.sort(norms**2)[::-1]
        if not squares[0] > 0 or len(norms) < _SMALL:
            return ""
        half = int(np.searchsorted(np.cumsum(squares) / squares.sum(), HALF)) + 1
        return (
            f"the gradient at {self._where} is spread over {self._batch}: {half} of its {len(norms)} rows hold half of the "
            "squared gradient"
        )

    def _not_finite(self, rows: list[int], count: int) -> str:
        inputs = self._bad_inputs()
        if len(rows) == count:
            said = f"the gradient at {self._where} is finite in none of the {count} rows of {self._batch}"
        else:
            said = f"the gradient at {self._where} is not finite in {self._named(rows)}"
        if inputs == rows:
            return f"{said}, where the batch itself is not finite either"
        return f"{said}, and the batch itself is not finite in {self._named(inputs, alone=False)}" if inputs else said

    def _bad_inputs(self) -> list[int]:
        """The rows whose input is not finite, counted over all batches."""
        bad = [np.zeros(len(part.norms), dtype=np.bool_) if part.bad_inputs is None else part.bad_inputs for part in self.parts]
        return [int(row) for row in np.flatnonzero(np.concatenate(bad))]

    def _named(self, rows: Sequence[int], alone: bool = True) -> str:
        """Some rows in words, with the indices of their samples; the batch is named too if they stand alone."""
        places = [self._place(row) for row in rows[:_FEW]]
        shown = [f"{row} of batch {batch}" if len(self.parts) > 1 else str(row) for batch, row, _ in places]
        samples = [str(sample) for _, _, sample in places if sample is not None]
        more = len(rows) - len(places)
        words = ("row " if len(rows) == 1 else "rows ") + _joined(shown, more)
        count = sum(len(part.norms) for part in self.parts)
        where = f" of the {count} in {self._batch}" if alone else ""
        if len(samples) < len(places):
            return words + where
        return f"{words}{where} ({'sample' if len(rows) == 1 else 'samples'} {_joined(samples, more)})"

    def _place(self, row: int) -> tuple[int, int, object]:
        """The batch of a row, from 0, its position in the batch, and the index of its sample."""
        for number, part in enumerate(self.parts):
            if row < len(part.norms):
                return number, row, None if part.samples is None else part.samples[row]
            row -= len(part.norms)
        raise IndexError(row)

    @property
    def _batch(self) -> str:
        batch = "batch" if len(self.parts) == 1 else f"{len(self.parts)} batches"
        return f"the {batch} of step {self.step}"

    @property
    def _where(self) -> str:
        return self.module or "the output"


def _joined(words: Sequence[str], more: int) -> str:
    return enumerated([*words, f"{more} more"] if more else words)
