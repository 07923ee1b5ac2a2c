"""The table of traits: what measurements show exactly, such as which rows ran, moved and in which format, and in which words.

Rows that a good run lacks, or of which a trait varies there, are not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lightning_hooks.health.evidence import Evidence
from lightning_hooks.health.reference.element_counts import counts_differ
from lightning_hooks.health.reference.rule import IF_MEANT, Compared, GoodRuns, first_run
from lightning_hooks.health.reference.trait_learning import moved_at_all, weights_and_updates
from lightning_hooks.health.reference.traits import BFLOAT16_DIGITS, FLOAT16_DIGITS, digits_of, jumps, repeated
from lightning_hooks.health.roles import WEIGHTED, Mask, roles_of
from lightning_hooks.health.rule import Symptom
from lightning_hooks.health.rules.base import held_at_measurements
from lightning_hooks.health.sighted import has_looked_for
from lightning_hooks.health.track import Track

_FORMATS: Final = ((BFLOAT16_DIGITS, "bfloat16"), (FLOAT16_DIGITS, "float16"))
_WEIGHT: Final = ("count", "mean", "std", "norm", "abs_max")
_IN_A_ROW: Final = ("workers-repeat", "batches-in-a-row")
_INPUT: Final = ("mean", "std", "abs_max")
_FLOW: Final = (("output", "count"), ("grad", "count"), ("update", "abs_max"))


def _no_flow(good: GoodRuns, evidence: Evidence) -> str | None:
    return None if any(evidence.has(*need) for need in _FLOW) else "no row has `output`, `grad` or `update`"


def _no_batches(good: GoodRuns, evidence: Evidence) -> str | None:
    """Repeated batches show in the statistics of inputs and to lookouts, and a run may have only one of them."""
    has_inputs = all(evidence.has("input", stat) for stat in _INPUT)
    return None if has_inputs or has_looked_for(evidence, _IN_A_ROW) else "no input is measured, and no lookout sees batches"


def _symptoms(
    track: Track, holds: Mask, measured: NDArray[Any], thresholds: ArrayLike, text: Callable[[int, int], str]
) -> Iterator[Symptom]:
    """A symptom for each step and row at which a trait differs.

    Args:
        track: its steps and rows.
        holds: whether the trait differs, bool [window, rows].
        measured: the number of this run, [window, rows].
        thresholds: the number of the good runs, likewise or anything that broadcasts to it.
        text: the words, by line and row.
    """
    limits = np.broadcast_to(np.asarray(thresholds, dtype=np.float64), holds.shape)
    for line, row in np.argwhere(holds).tolist():
        yield Symptom(
            track.names[row],
            tensor=track.tensor,
            step=int(track.steps[line]),
            measured=float(measured[line, row]),
            threshold=float(limits[line, row]),
            text=text(line, row),
        )


def _always_and_never(verdicts: Mapping[str, bool | None], names: Sequence[str]) -> tuple[Mask, Mask]:
    """Which rows have a trait at every step of the good runs, and which at none, each bool [rows]."""
    always = np.array([verdicts.get(name) is True for name in names], dtype=np.bool_)
    never = np.array([verdicts.get(name) is False for name in names], dtype=np.bool_)
    return always, never


@dataclass(frozen=True)
class Presence:
    """Whether the rows of a tensor are measured where they are due.

    Args:
        tensor: the name of the tensor.
        present: the words for a row that no good run measured.
        absent: the words for a row that the good runs measured at every step.
    """

    tensor: str
    present: str
    absent: str

    def __call__(self, good: GoodRuns, evidence: Evidence) -> Iterator[Symptom]:
        track = evidence.track(self.tensor, "count")
        if track is None:
            return
        always, never = _always_and_never(good.traits(self.tensor).present, track.names)
        measured = track.values > 0
        compared = good.compared_steps(track)[:, None] & evidence.are_due(self.tensor)
        # A step that measured nothing of the tensor, as one whose backward was skipped, says nothing of single rows.
        compared = compared & np.any(measured, axis=1, keepdims=True)

        def text(line: int, row: int) -> str:
            is_there = measured[line, row]
            now, before = (self.present, "at no") if is_there else (self.absent, "at every")
            return f"it {now}; {good.words} it did {before} step"

        yield from _symptoms(track, compared & ((always & ~measured) | (never & measured)), measured, ~measured, text)


def _moves_differ(good: GoodRuns, evidence: Evidence) -> Iterator[Symptom]:
    """A weight moves, or stands still for `still` steps, other than at every step of the good runs."""
    track, still = evidence.track("update", "abs_max"), int(good.tolerances["still"])
    if track is None:
        return
    always, never = _always_and_never(good.traits("update").moves, track.names)
    moved = moved_at_all(track.values)
    with np.errstate(invalid="ignore"):
        stands = held_at_measurements(track, (track.values == 0) & moved & always, still)
        moves = (track.values > 0) & never

    def text(line: int, row: int) -> str:
        if moves[line, row]:
            return f"the optimizer moves it; {good.words} it stood still at every step"
        return f"it has stood still for {still} steps; {good.words} it moved at every step"

    yield from _symptoms(track, good.compared_steps(track)[:, None] & (stands | moves), track.values, 0.0, text)


def _formats_differ(good: GoodRuns, evidence: Evidence) -> Iterator[Symptom]:
    """A layer computes in another number format, as the digits of its largest and smallest output show."""
    low, high, roles = evidence.track("output", "min"), evidence.track("output", "max"), roles_of(evidence)
    if low is None or high is None or roles is None:
        return
    lines = np.flatnonzero(good.compared_steps(low))
    digits = digits_of(low.values[lines], high.values[lines])
    known = good.traits("output").digits
    least, most = np.array([known.get(name, (0, 0)) for name in low.names], dtype=np.intp).reshape(-1, 2).T
    was_short, is_short = most <= FLOAT16_DIGITS, digits <= FLOAT16_DIGITS
    judged = roles.have_role(low.names, WEIGHTED) & np.array([name in known for name in low.names], dtype=np.bool_)
    holds = judged & (digits > 0) & ((was_short & ~is_short) | ((least > FLOAT16_DIGITS) & is_short))

    def text(line: int, row: int) -> str:
        now, before = int(digits[line, row]), int(most[row])
        change = f"it is {_format(now)} instead of {_format(before)}"
        return f"its output needs {now} binary digits, {good.words} {before}: {change}"

    yield from _symptoms(low._replace(steps=low.steps[lines]), holds, digits, most, text)


def _format(digits: int) -> str:
    return next((name for most, name in _FORMATS if digits <= most), "float32")


def _weights_jump(good: GoodRuns, evidence: Evidence) -> Iterator[Symptom]:
    """A weight moved between two steps by `times` what its updates explain, or by as much more than it did in the good runs.

    Code has written to it: an initialisation that runs again, a checkpoint that was loaded, an average that was copied.
    """
    tracks = {stat: evidence.track("param", stat) for stat in _WEIGHT}
    update, update_max = evidence.track("update", "norm"), evidence.track("update", "abs_max")
    params = {stat: evidence.of_rows(track) for stat, track in tracks.items() if track is not None}
    if update is None or update_max is None or len(params) < len(tracks):
        return
    update, update_max = evidence.of_rows(update), evidence.of_rows(update_max)
    if not len(update.steps[update.new]):
        return
    first = max(0, (update.new.start or 0) - 1)
    of_params = {stat: track.values[first:] for stat, track in params.items()}
    of_updates = {"norm": update.values[first:], "abs_max": update_max.values[first:]}
    names = next(iter(params.values())).names
    found = jumps(update.steps[first:], weights_and_updates(names, of_params, update.names, of_updates))
    jump = good.traits("update").jump
    limits = np.array([good.tolerances["times"] * max(1.0, jump.get(name, np.inf)) for name in update.names])
    with np.errstate(invalid="ignore"):
        holds = (found.steps <= good.reference.last)[:, None] & (found.multiples > limits)

    def text(line: int, row: int) -> str:
        explained = f"{found.multiples[line, row]:.3g} times what its updates explain"
        return f"it moved by at least {explained}, {good.words} by {jump[update.names[row]]:.2g}"

    yield from _symptoms(update._replace(steps=found.steps), holds, found.multiples, limits, text)


def _inputs_repeat(good: GoodRuns, evidence: Evidence) -> Iterator[Symptom]:
    """Steps that follow one another have the same inputs; in the good runs they never did."""
    tracks = {stat: evidence.track("input", stat) for stat in _INPUT}
    known = {stat: track for stat, track in tracks.items() if track is not None}
    name = first_run(evidence, known["mean"]) if len(known) == len(tracks) else None
    if name is None or good.traits("input").repeats.get(name) != 0.0:
        return
    track = known["mean"]
    column, begin = track.names.index(name), max(0, (track.new.start or 0) - 1)
    same, _ = repeated({stat: each.values[begin:, column : column + 1] for stat, each in known.items()})
    steps = track.steps[begin + 1 :]
    holds = same & ((np.diff(track.steps[begin:]) == 1) & (steps <= good.reference.last))[:, None]
    of_first = track._replace(tensor="", names=(name,), steps=steps)
    text = f"its input equals that of the step before; {good.words} no two measured steps had equal inputs"
    yield from _symptoms(of_first, holds, same, 0.0, lambda line, row: text)


def _batches_repeat(good: GoodRuns, evidence: Evidence) -> Iterator[Symptom]:
    """Batches come several times in a row, as a lookout has seen; in the good runs it never saw that."""
    for step in evidence.new_steps.tolist():
        facts = evidence.facts_at(step)
        for sighting in () if facts is None or step > good.reference.last else facts.sightings:
            if sighting.kind in _IN_A_ROW and good.never_saw(sighting.kind):
                yield Symptom(
                    "", tensor="", step=step, measured=1.0, threshold=0.0, text=f"{sighting.text}; {good.words} none did"
                )


TRAITS: Final = (
    # A module runs, a parameter gets a gradient, or a weight moves, other than at every step of the good run.
    Compared(
        "ReferenceFlow",
        (
            Presence("output", "runs", "does not run"),
            Presence("grad", "gets a gradient", "gets no gradient"),
            _moves_differ,
        ),
        # The steps in a row at which a weight that always moved must stand still.
        tolerances={"still": 3},
        patience=2,
        needs=_FLOW,
        obstacle=_no_flow,
    ),
    # A module gives another number of elements in a step.
    Compared(
        "ReferenceCalls",
        (counts_differ,),
        # The measured steps in a row at which the number differs.
        tolerances={"lasting": 3},
        needs=(("output", "count"),),
        source="exact; at 3 steps in a row, because the last batch of an epoch may be smaller",
    ),
    # A layer computes in another number format.
    Compared(
        "ReferencePrecision",
        (_formats_differ,),
        patience=3,
        needs=(("output", "min"), ("output", "max")),
        next_steps=(
            "Look for `autocast(enabled=False)`, `.float()`, or a decorator of `torch.amp` around the layer.",
            IF_MEANT,
        ),
        source="the formats: a bfloat16 has 8 binary digits, a float16 11; a float32 has so few once in 8,000",
    ),
    # A weight moved between two steps by far more than its updates explain; in the good run none did.
    Compared(
        "ReferenceWeights",
        (_weights_jump,),
        # The smallest multiple of the updates that counts.
        tolerances={"times": 4.0},
        needs=(*(("param", stat) for stat in _WEIGHT), ("update", "norm"), ("update", "abs_max")),
        next_steps=(
            "Look for an initialisation that runs after the checkpoint is loaded, and for keys that the checkpoint lacks.",
            IF_MEANT,
        ),
        source="the triangle inequality: a weight moves at most by the sum of its updates; 4 times: ours",
    ),
    # Steps that follow one another have the same inputs; in the good run they did not.
    Compared(
        "ReferenceData",
        (_inputs_repeat, _batches_repeat),
        patience=2,
        needs=tuple(("input", stat) for stat in _INPUT),
        needs_start=("input",),
        obstacle=_no_batches,
        looks_for=_IN_A_ROW,
        next_steps=(
            "If workers of the loader read an IterableDataset, let each read its own part (`get_worker_info`).",
            "Look at the seeds of workers, at the sampler, and at a generator that is created anew for each batch.",
        ),
    ),
)
"""The table of the traits that are compared."""
