"""Looks whether a fit goes on from a checkpoint with all of its state: moments, step counts, schedules, rates, generators."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, ClassVar, Final, NamedTuple

from torch.optim import Optimizer

from lightning_hooks.engine.lookouts.generators import Begins, GeneratorState, begins_of, states_of, verdict
from lightning_hooks.engine.lookouts.loaders import begins_anew
from lightning_hooks.engine.lookouts.saved_seam import (
    OptimizerState,
    PendingNumbers,
    PendingOptimizer,
    ScheduleState,
    Seam,
    pending_weights,
    rates_of,
    schedule_state,
    state_of,
)
from lightning_hooks.engine.lookouts.surroundings import Surroundings
from lightning_hooks.engine.participants.lookout import Lookout
from lightning_hooks.engine.participants.participant import PhaseMemo
from lightning_hooks.records.facts import Sighting
from lightning_hooks.stats.kernels import is_capturing
from lightning_hooks.stats.processes import rank

LOST: Final = "state-lost"
"""The kind of a sighting of a state that is not there, or not the saved one."""
OTHER: Final = "resumed-otherwise"
"""The kind of a sighting of something that may be another than before on purpose."""
RESUMED: Final = "resumed"
"""The kind of the sighting that a fit goes on; its measured number is the first step."""
STEPS: Final = 12
"""The number of first steps that are looked at."""
_PACE: Final = 5
"""The number of steps in each of which a schedule must have advanced to be one by steps."""
_UNDER_WAY: Final = 10
"""The number of steps from which on an optimizer or a schedule is one that goes on."""
_SAME: Final = 1e-2
"""The share by which the norm of a state may differ from the saved one: a cast to bfloat16 changes it by less."""
_SAME_RATE: Final = 1e-3
"""The share by which rates differ that are not the same."""
_MOST_ROWS: Final = 20
"""The number of parameters that a sighting names at most."""


class _Seen(NamedTuple):
    """An optimizer at its first step.

    Args:
        number: of the optimizer.
        optimizer: the optimizer.
        state: before the step.
    """

    number: int
    optimizer: Any
    state: PendingOptimizer


class _Schedule(NamedTuple):
    """A schedule at the first step.

    Args:
        schedule: the schedule.
        optimizer: whose rates it sets.
        state: where it was.
        rates: that it set last.
    """

    schedule: Any
    optimizer: Any
    state: ScheduleState
    rates: tuple[float, ...]


class ResumeLookout(Lookout):
    """Looks at the first steps whether optimizers and schedules go on where the fit goes on.

    Where a checkpoint tells what it kept, that is compared; else the number of the first step, the step counts of optimizers
    and those of schedules are compared with each other. A fit that begins with everything new is none of its concern, whatever
    its weights are.
    """

    kinds: ClassVar[tuple[str, ...]] = (LOST, OTHER, RESUMED)
    reads_updates = True

    def __init__(self, surroundings: Surroundings) -> None:
        self._around = surroundings
        self._first = 0  # the number of the first step
        self._looked = 0
        self._begun = 0  # the number of steps that had been looked at when an optimizer stepped first
        self._seen: dict[int, _Seen] = {}  # by the id of an optimizer
        self._schedules: list[_Schedule] | None = None
        self._states: dict[int, OptimizerState] = {}  # before the first step, by the number of an optimizer
        self._weights: PendingNumbers | None = None
        # Only the first rank compares generators, since a checkpoint holds those of that rank, and only in a Trainer, since
        # nothing is saved with the checkpoint of a plain loop.
        self._asks_generators = surroundings.knows_batches and rank() == 0
        self._begin = self._generators_now()
        self._generators: tuple[GeneratorState, ...] = ()  # as they were before the first step
        self._lost: dict[str, bool] = {}  # what is lost, in words, and whether that is never right
        self._found: dict[str, Sighting] = {}  # by what is told

    @property
    def begins(self) -> Begins:
        """What is known of the generators of random numbers at the begin of the training; empty before the first step."""
        saved = self._around.saved()
        if isinstance(saved, Seam):
            return {each.name: (each.begin, each.first) for each in saved.generators}
        return {} if self._first else begins_of(self._begin, self._generators)

    def step_key(self, step: int, stage: str) -> Hashable | None:
        return "resume" if stage == "train" and self._looked < STEPS else None

    def begin_step(self, step: int, stage: str, reporting: bool) -> None:
        if not self._looked:
            # A loop that numbers its steps from 1 begins there.
            self._first = step if step > 1 else 0
            self._generators = self._generators_now()
        self._looked += 1

    def before_update(self, optimizer: Optimizer, memo: PhaseMemo) -> None:
        # A captured step is not made yet, and what is copied to the host while it is captured would become a part of it.
        if any(is_capturing(each.device) for group in optimizer.param_groups for each in group["params"][:1]):
            return
        if self._schedules is None:
            self._begun = self._looked
            if self._around.saved() is not None:
                self._weights = pending_weights(self._around)
            schedules = [(each, getattr(each, "optimizer", None)) for each in self._around.schedules()]
            self._schedules = [_Schedule(*each, schedule_state(each[0]), rates_of(each[0])) for each in schedules]
        optimizers = list(self._around.optimizers())
        number = next((i for i, each in enumerate(optimizers) if each is optimizer), None)
        # Only an optimizer that steps at once is one that has stepped before: another may begin later on purpose.
        if number is not None and self._looked == self._begun and id(optimizer) not in self._seen:
            self._seen[id(optimizer)] = _Seen(number, optimizer, PendingOptimizer(optimizer, self._around.names()))

    def end_step(self) -> None:
        if self._looked > STEPS:
            return
        is_last = self._looked == STEPS
        is_ready = all(each.state.ready for each in self._seen.values()) and (self._weights is None or self._weights.ready)
        if not self._states and (is_last or is_ready):
            self._states = {each.number: each.state.read() for each in self._seen.values()}
        if self._states:
            self._look()
        if is_last:
            self.left()

    def left(self) -> None:
        self._seen.clear()
        self._schedules = []
        self._weights = None

    def sightings(self) -> tuple[Sighting, ...]:
        return tuple(self._found.values())

    def _look(self) -> None:
        """Compare what is known by now. Each look begins anew, since later ones know more."""
        self._lost, saved = {}, self._around.saved()
        if self._first and self._around.is_resumed():
            self._found[RESUMED] = Sighting(RESUMED, f"the fit goes on at step {self._first}", measured=float(self._first))
        for seen in self._seen.values():
            self._look_at_state(seen, _saved_of(saved, seen.number))
        for number, each in enumerate(self._schedules or ()):
            self._look_at_schedule(each, _schedule_of(saved, number, each.state.type))
        if self._weights is not None and isinstance(saved, Seam):
            self._tell_norms("the weights", self._weights.read()[0], saved.weights, is_fact=False)
        rates = [self._rate(each, known) for each in self._seen.values() if (known := _saved_of(saved, each.number))]
        others = [text for text in rates if text] if isinstance(saved, Seam) and not self._has_advanced(saved) else []
        if isinstance(saved, Seam) and self._first and self._around.is_resumed():
            drawn = verdict(begins_of(self._begin, self._generators), self._generators, saved.generators)
            others += filter(None, (drawn, begins_anew(self._around.loaders(), saved.batches)))
        if self._lost:
            goes_on = f"the fit goes on at step {self._first} " if self._first else ""
            text = "; ".join([goes_on + " and ".join(self._lost), *others])
            self._found[LOST] = Sighting(LOST, text, is_fact=any(self._lost.values()))
        elif others:
            self._found[OTHER] = Sighting(OTHER, "; ".join(others), is_fact=False)

    def _look_at_state(self, seen: _Seen, before: OptimizerState | None) -> None:
        now, which = self._states[seen.number], self._name(seen.number)
        if before is not None and before.type != now.type:
            return
        if not now.held:
            parameters = [each for group in seen.optimizer.param_groups for each in group["params"]]
            # An optimizer that keeps no state, as SGD without momentum, has none after its step either.
            if any(state_of(seen.optimizer, each) for each in parameters):
                self._look_at_empty(seen, now, before)
        elif before is None:
            if now.count == 0 and self._first:
                self._lose(f"with {which} at its step 0")
        elif now.count != before.count and min(now.count, before.count) >= 0:
            self._lose(f"with {which} at its step {now.count}, where step {before.count} was saved", is_fact=True)
        else:
            self._tell_norms(f"the moments of {which}", now.moments, before.moments, is_fact=True)

    def _look_at_empty(self, seen: _Seen, now: OptimizerState, before: OptimizerState | None) -> None:
        """Tell that a state is empty, if something says that it should not be."""
        which, at = self._name(seen.number), [each.state for each in self._schedules or () if each.optimizer is seen.optimizer]
        empty = f"its state is empty for {now.parameters} of {now.parameters} parameters"
        number, other = max(self._states.items(), key=lambda item: item[1].count)
        if self._first:
            if before is None or before.held:
                self._lose(f"without the moments of {which}: {empty}")
        elif at and at[0].at >= _UNDER_WAY:
            text = f"{at[0].type} goes on at its step {at[0].at}, but {which} begins without moments: {empty}"
            self._lose(text, is_fact=True)
        elif other.count >= _UNDER_WAY:
            text = f"{self._name(number)} goes on at its step {other.count}, but {which} begins without moments: {empty}"
            self._lose(text, is_fact=False)

    def _tell_norms(self, what: str, now: Mapping[str, float], saved: Mapping[str, float], *, is_fact: bool) -> None:
        """Tell at which parameters norms are not the saved ones, which is a fact if it is so at half of them."""
        common = [name for name in now if name in saved]
        other = [name for name in common if not _are_near(now[name], saved[name], _SAME)]
        if not other:
            return
        first, then = now[other[0]], saved[other[0]]
        text = (
            f"{what} are not the saved ones for {len(other)} of {len(common)} parameters: the norm is {first:.3g}, where "
            f"{then:.3g} was saved"
        )
        is_fact = is_fact and 2 * len(other) >= len(common)
        rows = tuple(other[:_MOST_ROWS])
        self._found[what] = Sighting(LOST, text, rows, is_fact=is_fact, measured=first, threshold=then)

    def _rate(self, seen: _Seen, before: OptimizerState) -> str:
        """How the rate or the class of an optimizer differs from what was saved; empty if it does not."""
        now = self._states[seen.number]
        if now.type != before.type:
            return f"the optimizer is {now.type} at step {self._first}, where {before.type} was saved"
        pairs = zip(now.rates, before.rates, strict=False)
        other = [(rate, known) for rate, known in pairs if not _are_near(rate, known, _SAME_RATE)]
        return f"the rate of {self._name(seen.number)} is {other[0][0]:.3g}, where {other[0][1]:.3g} was saved" if other else ""

    def _generators_now(self) -> tuple[GeneratorState, ...]:
        return states_of(self._around, {}) if self._asks_generators else ()

    def _has_advanced(self, saved: Seam) -> bool:
        """Whether a schedule has advanced since the checkpoint: a Trainer saves before it advances a schedule by epochs."""
        return any(now.state.at > known.at for now, known in zip(self._schedules or (), saved.schedules, strict=False))

    def _look_at_schedule(self, each: _Schedule, before: ScheduleState | None) -> None:
        at, kind = each.state.at, each.state.type
        if before is not None:
            if 0 <= at < before.at and self._first:
                self._lose(f"with {kind} at its step {at}, where step {before.at} was saved", is_fact=True)
            return
        # A schedule by epochs stands at 0 in the first epoch, so only one that advances with the steps is judged.
        advanced, steps = schedule_state(each.schedule).at - at, self._looked - self._begun
        if at != 0 or steps < _PACE or advanced < steps:
            return
        owner = next((seen for seen in self._seen.values() if seen.optimizer is each.optimizer), None)
        if owner is not None:
            self._look_at_restart(owner, each)

    def _look_at_restart(self, owner: _Seen, each: _Schedule) -> None:
        """Tell that a schedule begins although the fit or its optimizer goes on.

        A second schedule for an optimizer is often made on purpose, and then has set the rate. If the rate is not the one that
        the schedule has set, the state of the optimizer was loaded after the schedule was made. That also tells of an optimizer
        with moments and without a step count, as SGD with momentum, that it goes on.
        """
        state, kind = self._states[owner.number], each.state.type
        other = [pair for pair in zip(state.rates, each.rates, strict=False) if not _are_near(*pair, _SAME_RATE)]
        if not (self._first or state.count >= _UNDER_WAY or (state.count < 0 and state.held and other)):
            return
        at = (
            f"at its step {state.count}"
            if state.count >= 0
            else f"with moments of {state.held} of {state.parameters} parameters"
        )
        text = f"{self._name(owner.number)} goes on {at}, but {kind} at its step 0"
        if self._first:
            text = f"with {kind} at its step 0"
        if other:
            text += f": the rate is {other[0][0]:.3g}, and the schedule goes on from {other[0][1]:.3g}"
        self._lose(text, is_fact=bool(other) and self._around.is_resumed())

    def _lose(self, text: str, *, is_fact: bool | None = None) -> None:
        """Note something that is lost; by default a fact if the fit says that it goes on from a checkpoint."""
        self._lost[text] = self._around.is_resumed() if is_fact is None else is_fact

    def _name(self, number: int) -> str:
        name = self._states[number].type
        return f"optimizer {number} ({name})" if len(self._around.optimizers()) > 1 else name


def _saved_of(saved: Any, number: int) -> OptimizerState | None:
    """What was saved of an optimizer; None if nothing was."""
    return saved.optimizers[number] if isinstance(saved, Seam) and number < len(saved.optimizers) else None


def _schedule_of(saved: Any, number: int, kind: str) -> ScheduleState | None:
    """What was saved of a schedule; None if nothing was, or of one of another class."""
    known = saved.schedules[number] if isinstance(saved, Seam) and number < len(saved.schedules) else None
    return known if known is not None and known.type == kind else None


def _are_near(one: float, other: float, share: float) -> bool:
    """Whether two numbers differ by a share of the larger one at most; NaN is near everything, because nothing is known."""
    return not abs(one - other) > share * max(abs(one), abs(other))


LOOKOUTS: Final[tuple[type[Lookout], ...]] = (ResumeLookout,)
"""The lookouts of this file."""
