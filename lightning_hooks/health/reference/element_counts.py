"""Compares the number of elements that each module gives in a step: batches, and how often a module runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.health.evidence import Evidence
from lightning_hooks.health.reference.rule import GoodRuns
from lightning_hooks.health.roles import Mask
from lightning_hooks.health.rule import Symptom
from lightning_hooks.health.rules.base import held_at_measurements
from lightning_hooks.health.track import Track
from lightning_hooks.health.window import Array


def counts_differ(good: GoodRuns, evidence: Evidence) -> Iterator[Symptom]:
    """A module gives another number of elements for `lasting` steps: it runs more or less often, or batches differ.

    If most modules differ by one factor, it is the batch.
    """
    track, lasting = evidence.track("output", "count"), int(good.tolerances["lasting"])
    if track is None:
        return
    # The count of a row that was not measured is 0.
    measured = track._replace(values=np.where(track.values > 0, track.values, np.nan))
    traits = good.traits("output").counts
    counts = [traits.get(name, ()) for name in track.names]
    factors = np.array([1 / np.median(known) if known else np.nan for known in counts]) * measured.values
    lines = np.flatnonzero(good.compared_steps(track)).tolist()
    if not lines or not _are_odd(measured.values[lines], counts).any():
        return
    odd = held_at_measurements(measured, _are_odd(measured.values, counts), lasting)
    for line in lines:
        if odd[line].any():
            yield from _odd(good, measured._replace(values=factors), line, np.flatnonzero(odd[line]))


def _odd(good: GoodRuns, factors: Track, line: int, rows: NDArray[np.intp]) -> Iterator[Symptom]:
    """The symptoms of the odd rows of a step: one for the batch, and one for each row that differs by another factor."""
    of_step = factors.values[line]
    common = float(np.median(of_step[rows]))
    is_batch = np.abs(of_step[rows] / common - 1) < 0.01
    if is_batch.sum() <= int(np.isfinite(of_step).sum()) / 2:
        is_batch[:] = False

    def symptom(name: str, tensor: str, factor: float, row: int, words: str) -> Symptom:
        # The first of the steps in a row at which the row has been odd, at the least.
        measured = np.flatnonzero(np.isfinite(factors.values[: line + 1, row]))
        since = int(factors.steps[measured[-int(good.tolerances["lasting"])]])
        text = words.format(f"{factor:.3g} times as many elements", good.words)
        step = int(factors.steps[line])
        return Symptom(name, tensor=tensor, step=step, measured=factor, threshold=1.0, text=text, since=since)

    if is_batch.any():
        yield symptom("", "", common, int(rows[is_batch.argmax()]), "a step has {} as {}")
    for row in rows[~is_batch].tolist():
        yield symptom(factors.names[row], "output", float(of_step[row]), row, "it gives {} in a step as {}")


def _are_odd(values: Array, counts: Sequence[tuple[int, ...]]) -> Mask:
    """Which rows have a number of elements that they never had in the good run, bool [steps, rows].

    A row whose numbers of elements the good run does not know is not odd.
    """
    most = max(map(len, counts), default=0)
    allowed = np.full((most, len(counts)), np.nan)
    for row, known in enumerate(counts):
        allowed[: len(known), row] = known
    has_counts = np.isfinite(allowed).any(axis=0)
    odd: Mask = np.isfinite(values) & has_counts & ~(values[:, None, :] == allowed[None]).any(axis=1)
    return odd
