"""Rules that compare exactly what measurements show: which rows ran, moved and in which format, and whether inputs repeat."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.health.evidence import Evidence, Track
from lightning_hooks.health.reference.rule import IF_MEANT, ReferenceRule, first_run
from lightning_hooks.health.reference.trait_learning import moved_at_all, weights_and_updates
from lightning_hooks.health.reference.traits import (
    BFLOAT16_DIGITS,
    FLOAT16_DIGITS,
    Traits,
    digits_of,
    jumps,
    repeated,
)
from lightning_hooks.health.roles import WEIGHTED, Mask, roles_of
from lightning_hooks.health.rule import Symptom
from lightning_hooks.health.rules.base import Needs, held_at_measurements
from lightning_hooks.health.window import Array

_NOTHING: Final = Traits()
_FORMATS: Final = ((BFLOAT16_DIGITS, "bfloat16"), (FLOAT16_DIGITS, "float16"))


@dataclass(frozen=True, kw_only=True)
class TraitRule(ReferenceRule):
    """A rule on the traits of rows. Rows that the good run lacks, or of which a trait varies there, are not compared."""

    def good_traits(self, tensor: str) -> Traits:
        """The traits that the rows of a tensor have in the good runs."""
        return self.reference.traits.get(tensor, _NOTHING)

    def compared_steps(self, track: Track) -> Mask:
        """The new steps of a track that are compared, bool [window]."""
        new = np.zeros(len(track.steps), dtype=np.bool_)
        new[track.new] = track.steps[track.new] <= self.reference.last
        return new


@dataclass(frozen=True, kw_only=True)
class ReferenceFlow(TraitRule):
    """A module runs, a parameter gets a gradient, or a weight moves, other than at every step of the good run.

    Args:
        still: the steps in a row at which a weight that always moved must stand still.
    """

    patience: int = 2
    still: int = 3
    needs: ClassVar[Needs] = (("output", "count"), ("grad", "count"), ("update", "abs_max"))

    def can_run(self, evidence: Evidence) -> str | None:
        if any(evidence.has(*need) for need in self.needs):
            return None
        return "no row has `output`, `grad` or `update`"

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        words = {"output": ("runs", "does not run"), "grad": ("gets a gradient", "gets no gradient")}
        for tensor, (present, absent) in words.items():
            track = evidence.track(tensor, "count")
            if track is not None:
                yield from self._presence(track, evidence.are_due(tensor), present, absent)
        track = evidence.track("update", "abs_max")
        if track is not None:
            yield from self._moves(track)

    def _presence(self, track: Track, due: Mask, present: str, absent: str) -> Iterator[Symptom]:
        traits = self.good_traits(track.tensor).present
        always = np.array([traits.get(name) is True for name in track.names], dtype=np.bool_)
        never = np.array([traits.get(name) is False for name in track.names], dtype=np.bool_)
        measured = track.values > 0
        lines = self.compared_steps(track)[:, None] & due
        # A step that measured nothing of the tensor, as one whose backward was skipped, says nothing of single rows.
        lines = lines & np.any(measured, axis=1, keepdims=True)
        for line, row in np.argwhere(lines & ((always & ~measured) | (never & measured))).tolist():
            is_there = bool(measured[line, row])
            text = f"it {present if is_there else absent}; {self.good} it did {'at no' if is_there else 'at every'} step"
            yield Symptom(
                track.names[row],
                tensor=track.tensor,
                step=int(track.steps[line]),
                measured=float(is_there),
                threshold=float(not is_there),
                text=text,
            )

    def _moves(self, track: Track) -> Iterator[Symptom]:
        traits = self.good_traits("update").moves
        always = np.array([traits.get(name) is True for name in track.names], dtype=np.bool_)
        never = np.array([traits.get(name) is False for name in track.names], dtype=np.bool_)
        moved = moved_at_all(track.values)
        with np.errstate(invalid="ignore"):
            stands = held_at_measurements(track, (track.values == 0) & moved & always, self.still)
            moves = (track.values > 0) & never
        lines = self.compared_steps(track)[:, None]
        for line, row in np.argwhere(lines & (stands | moves)).tolist():
            value = float(track.values[line, row])
            text = (
                f"the optimizer moves it; {self.good} it stood still at every step"
                if moves[line, row]
                else f"it has stood still for {self.still} steps; {self.good} it moved at every step"
            )
            yield Symptom(
                track.names[row], tensor="update", step=int(track.steps[line]), measured=value, threshold=0.0, text=text
            )


@dataclass(frozen=True, kw_only=True)
class ReferenceCalls(TraitRule):
    """A module gives another number of elements in a step than in the good run: it runs more or less often, or batches differ.

    If most modules differ by one factor, it is the batch.

    Args:
        lasting: the measured steps in a row at which the number differs.
    """

    lasting: int = 3
    needs: ClassVar[Needs] = (("output", "count"),)
    source: ClassVar[str] = "exact; at 3 steps in a row, because the last batch of an epoch may be smaller"

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        track = evidence.track("output", "count")
        if track is None:
            return
        # The count of a row that was not measured is 0.
        measured = track._replace(values=np.where(track.values > 0, track.values, np.nan))
        counts = [self.good_traits("output").counts.get(name, ()) for name in track.names]
        factors = np.array([1 / np.median(known) if known else np.nan for known in counts]) * measured.values
        lines = np.flatnonzero(self.compared_steps(track)).tolist()
        if not lines or not _are_odd(measured.values[lines], counts).any():
            return
        odd = held_at_measurements(measured, _are_odd(measured.values, counts), self.lasting)
        for line in lines:
            if odd[line].any():
                known = int((np.isfinite(factors[line])).sum())
                yield from self._odd(measured, line, np.flatnonzero(odd[line]), factors[line], known)

    def _odd(self, track: Track, line: int, rows: NDArray[np.intp], factors: Array, known: int) -> Iterator[Symptom]:
        """The symptoms of the odd rows of a step: one for the batch, and one for each row that differs by another factor."""
        common, step = float(np.median(factors[rows])), int(track.steps[line])
        is_batch = np.abs(factors[rows] / common - 1) < 0.01
        if is_batch.sum() <= known / 2:
            is_batch[:] = False
        else:
            since = self._since(track, line, int(rows[is_batch.argmax()]))
            yield Symptom(
                "",
                tensor="",
                step=step,
                measured=common,
                threshold=1.0,
                text=f"a step has {common:.3g} times as many elements as {self.good}",
                since=since,
            )
        for row in rows[~is_batch].tolist():
            factor = float(factors[row])
            text = f"it gives {factor:.3g} times as many elements in a step as {self.good}"
            yield Symptom(
                track.names[row],
                tensor="output",
                step=step,
                measured=factor,
                threshold=1.0,
                text=text,
                since=self._since(track, line, row),
            )

    def _since(self, track: Track, line: int, row: int) -> int:
        """The first of the steps in a row at which a row has been odd, at the least."""
        measured = np.flatnonzero(np.isfinite(track.values[: line + 1, row]))
        return int(track.steps[measured[-self.lasting]])


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


@dataclass(frozen=True, kw_only=True)
class ReferencePrecision(TraitRule):
    """A layer computes in another number format than in the good run, as the digits of its largest and smallest output show."""

    patience: int = 3
    needs: ClassVar[Needs] = (("output", "min"), ("output", "max"))
    next_steps: ClassVar[tuple[str, ...]] = (
        "Look for `autocast(enabled=False)`, `.float()`, or a decorator of `torch.amp` around the layer.",
        IF_MEANT,
    )
    source: ClassVar[str] = "the formats: a bfloat16 has 8 binary digits, a float16 11; a float32 has so few once in 8,000"

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        low, high, roles = evidence.track("output", "min"), evidence.track("output", "max"), roles_of(evidence)
        if low is None or high is None or roles is None:
            return
        known = self.good_traits("output").digits
        chosen = np.flatnonzero(roles.have_role(low.names, WEIGHTED))
        for line in np.flatnonzero(self.compared_steps(low)).tolist():
            digits = digits_of(low.values[line], high.values[line])
            for row in chosen.tolist():
                name, now = low.names[row], int(digits[row])
                if name not in known or now == 0:
                    continue
                least, most = known[name]
                good, current = _format(most), _format(now)
                if (good != "float32" and now > FLOAT16_DIGITS) or (least > FLOAT16_DIGITS and current != "float32"):
                    text = f"its output needs {now} binary digits, {self.good} {most}: it is {current} instead of {good}"
                    yield Symptom(
                        name, tensor="output", step=int(low.steps[line]), measured=float(now), threshold=float(most), text=text
                    )


def _format(digits: int) -> str:
    return next((name for most, name in _FORMATS if digits <= most), "float32")


@dataclass(frozen=True, kw_only=True)
class ReferenceWeights(TraitRule):
    """A weight moved between two steps by far more than its updates explain; in the good run none did.

    Code has written to it: an initialisation that runs again, a checkpoint that was loaded, an average that was copied.

    Args:
        times: the smallest multiple of the updates that counts.
    """

    times: float = 4.0
    needs: ClassVar[Needs] = (
        *(("param", stat) for stat in ("count", "mean", "std", "norm", "abs_max")),
        *(("update", stat) for stat in ("norm", "abs_max")),
    )
    next_steps: ClassVar[tuple[str, ...]] = (
        "Look for an initialisation that runs after the checkpoint is loaded, and for keys that the checkpoint lacks.",
        IF_MEANT,
    )
    source: ClassVar[str] = "the triangle inequality: a weight moves at most by the sum of its updates; 4 times: ours"

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        tracks: Mapping[str, Track | None] = {stat: evidence.track("param", stat) for _, stat in self.needs[:5]}
        update, update_max = evidence.track("update", "norm"), evidence.track("update", "abs_max")
        params = {stat: track for stat, track in tracks.items() if track is not None}
        if update is None or update_max is None or len(params) < len(tracks) or not len(update.steps[update.new]):
            return
        first = max(0, (update.new.start or 0) - 1)
        of_params = {stat: track.values[first:] for stat, track in params.items()}
        names = next(iter(params.values())).names
        of_updates = {"norm": update.values[first:], "abs_max": update_max.values[first:]}
        found = jumps(update.steps[first:], weights_and_updates(names, of_params, update.names, of_updates))
        good = self.good_traits("update").jump
        limits = np.array([self.times * max(1.0, good.get(name, np.inf)) for name in update.names])
        compared = (found.steps <= self.reference.last)[:, None]
        with np.errstate(invalid="ignore"):
            above = np.argwhere(compared & (found.multiples > limits)).tolist()
        for line, row in above:
            value = float(found.multiples[line, row])
            text = (
                f"it moved by at least {value:.3g} times what its updates explain, {self.good} by {good[update.names[row]]:.2g}"
            )
            yield Symptom(
                update.names[row],
                tensor="update",
                step=int(found.steps[line]),
                measured=value,
                threshold=float(limits[row]),
                text=text,
            )


@dataclass(frozen=True, kw_only=True)
class ReferenceData(TraitRule):
    """Steps that follow one another have the same inputs; in the good run they did not."""

    patience: int = 2
    needs: ClassVar[Needs] = (("input", "mean"), ("input", "std"), ("input", "abs_max"))
    needs_start: ClassVar[tuple[str, ...]] = ("input",)
    next_steps: ClassVar[tuple[str, ...]] = (
        "If workers of the loader read an IterableDataset, let each read its own part (`get_worker_info`).",
        "Look at the seeds of workers, at the sampler, and at a generator that is created anew for each batch.",
    )

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        tracks = {stat: evidence.track("input", stat) for _, stat in self.needs}
        known = {stat: track for stat, track in tracks.items() if track is not None}
        name = first_run(evidence, known["mean"]) if len(known) == len(tracks) else None
        if name is None:
            return
        track = known["mean"]
        column = track.names.index(name)
        good = self.good_traits("input").repeats.get(track.names[column])
        if good != 0.0:
            return
        begin = max(0, (track.new.start or 0) - 1)
        numbers = {stat: each.values[begin:, column : column + 1] for stat, each in known.items()}
        same, _ = repeated(numbers)
        later = track.steps[begin + 1 :]
        same = same[:, 0] & (np.diff(track.steps[begin:]) == 1) & (later <= self.reference.last)
        for step in later[same].tolist():
            text = f"its input equals that of the step before; {self.good} no two measured steps had equal inputs"
            yield Symptom(track.names[column], tensor="", step=int(step), measured=1.0, threshold=0.0, text=text)


TRAIT_RULES: tuple[type[ReferenceRule], ...] = (
    ReferenceFlow,
    ReferenceCalls,
    ReferencePrecision,
    ReferenceWeights,
    ReferenceData,
)
"""The rules on what measurements show exactly."""
