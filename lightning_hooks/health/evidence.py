"""Evidence: what health rules read. The recent step views of one monitor and stage as arrays, and facts about the run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.errors import RuleError
from lightning_hooks.health.early_losses import EarlyLosses
from lightning_hooks.health.facts_history import FactsHistory
from lightning_hooks.health.reading import Reader
from lightning_hooks.health.readings import Readings
from lightning_hooks.health.track import Track
from lightning_hooks.health.window import WINDOW, Array, EarlyLevel, Key, Window, check_widths
from lightning_hooks.health.witness import falls
from lightning_hooks.plan.row_index import RowIndex
from lightning_hooks.plan.rows import Due
from lightning_hooks.records.facts import Sighting, StepFacts, Structure
from lightning_hooks.records.step_view import StepView

LOSS: Final = ("loss", "mean")
# With this many step views, read the statistics that no rule has asked for yet, so that the memory of the views can be freed.
_MOST_VIEWS: Final = 32


class Evidence:
    """The recent views of one monitor and stage, and facts about the run. A rule reads it and never changes it.

    A statistic is read when a rule first asks for it, from all new views at once.

    Args:
        needs: the pairs (tensor, statistic) that rules will ask for; the loss is always there.
        size: the number of steps to keep.

    Attributes:
        needs: the pairs that are collected.
        size: the number of steps that are kept.
        step: of the last view; -1 before the first.
        first_step: of the first view of the run; -1 before it.
        facts: how the last step trained; None if unknown.
        structure: the modules and parameters; None if unknown.
        ranks: the number of ranks that were merged.
        standing: the rows at which a finding of the rule that looks next stands, and since which step. A rule on what has been
            so since an early step needs it once that step has left the window.
        standing_places: the same rows, each with the tensor at which the condition was seen.
        ask: returns what lookouts know of a step; None where none looks, as in the files of a run.

    Example:
        >>> index = RowIndex(["fc.weight", "loss"], ["grad", "loss"])
        >>> evidence = Evidence(needs=[("grad", "mean")])
        >>> for step in range(3):
        ...     row = [4.0, step, 1.0, 2.0, 0.0, 1.0, 2.0, 0.0, 0.0]
        ...     evidence.add(StepView(step, rows=index, moments=np.array([row, row])))
        >>> evidence.track("grad", "mean").values.ravel().tolist(), evidence.loss().values.ravel().tolist()
        ([0.0, 1.0, 2.0], [0.0, 1.0, 2.0])
    """

    def __init__(self, needs: Iterable[Key] = (), size: int = WINDOW) -> None:
        self.needs = tuple(dict.fromkeys((LOSS, *needs)))
        self._needed = frozenset(self.needs)
        self.step = self.first_step = -1
        self.facts: StepFacts | None = None
        self.structure: Structure | None = None
        self.ranks = 1
        self.standing: Mapping[str, int] = {}
        self.standing_places: frozenset[tuple[str, str]] = frozenset()
        self.size = size
        self._window = Window(size)
        self._early: dict[Key, EarlyLevel] = {}
        self._early_losses = EarlyLosses()
        self._names: dict[str, tuple[str, ...]] = {}
        self._reader: Reader | None = None
        self._views: list[StepView] = []  # the last views, of which some statistic is still to be read
        self._facts = FactsHistory()
        self._due: dict[int, Due] = {}
        self._has_between = False  # whether there have been steps between those of rows
        self._readings = Readings()
        self._order: tuple[tuple[int, ...], tuple[str, ...]] = (), ()
        self._falls: dict[int, tuple[int, bool | None]] = {}
        self.ask: Callable[[int], tuple[Sighting, ...]] | None = None

    def add(self, view: StepView) -> None:
        """Add the view of the next step. If its step is not later than the last one, the later steps are forgotten."""
        if view.step <= self.step:
            self._go_back(view.step)
        if self._reader is None or self._reader.index is not view.rows:
            self._change_rows(view.rows)
        if view.is_between:
            self._has_between = True
        else:
            self._facts.add(view.step, view.facts)
            self.facts = view.facts
        self._due[view.step] = view.due
        if not 0 <= self.first_step <= view.step:
            self.first_step = view.step
        self.step, self.structure, self.ranks = view.step, view.structure, view.ranks
        self._window.add_step(view.step, is_between=view.is_between)
        self._views.append(view)
        self._readings.forget()
        if len(self._views) >= _MOST_VIEWS:
            self._release_views()

    def judge_after(
        self, step: int, standing: Mapping[str, int] | None = None, places: frozenset[tuple[str, str]] = frozenset()
    ) -> None:
        """Make the steps after this one the new ones, for the rule that looks next.

        Args:
            step: the last step that the rule has judged.
            standing: the rows at which a finding of the rule stands, each with its first step.
            places: the same rows, each with its tensor.
        """
        self.standing, self.standing_places = standing or {}, places
        self._readings.judge_after(step)

    @property
    def steps(self) -> NDArray[np.int64]:
        """The steps of the window, ascending."""
        return self._window.steps

    @property
    def holds_start(self) -> bool:
        """Whether the first step of the run is still in the window."""
        return bool(len(self.steps)) and int(self.steps[0]) == self.first_step

    @property
    def new_steps(self) -> NDArray[np.int64]:
        """The steps of the window that the rule has not judged before, without those between the steps of rows."""
        reading = self._readings.now(self._window.steps)
        if reading.new_steps is None:
            reading.new_steps = self._window.steps[reading.new]
            if self._has_between:
                reading.new_steps = reading.new_steps[self._window.of_rows[reading.new]]
        return reading.new_steps

    def of_rows(self, track: Track) -> Track:
        """A track of rows without the steps between, at which only the loss and the whole gradient were measured."""
        if not self._has_between:
            return track
        kept = self._are_of_rows(track.steps)
        if kept.all():
            return track
        new = slice(int(kept[: track.new.start].sum()), int(kept[: track.new.stop].sum()))
        return track._replace(steps=track.steps[kept], values=track.values[kept], new=new)

    def new_values(self, track: Track) -> Array:
        """The numbers of a track of rows at `new_steps`, float64 [new steps, rows]. This is cheaper than `of_rows`."""
        values = track.values[track.new]
        return values[self._are_of_rows(track.steps[track.new])] if self._has_between else values

    def _are_of_rows(self, steps: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether steps of the window are those of rows, bool [steps]."""
        return self._window.of_rows[self._window.steps.searchsorted(steps)]

    @property
    def tensors(self) -> tuple[str, ...]:
        """The tensors that the views have rows of."""
        return self._reader.tensors if self._reader else ()

    @property
    def order(self) -> tuple[str, ...]:
        """The names of the modules in the order of execution."""
        index = self._reader.index if self._reader else None
        if index is None:
            return ()
        if self._order[0] is not index.order:
            self._order = index.order, tuple(dict.fromkeys(index.names[row] for row in index.order))
        return self._order[1]

    def track(self, tensor: str, stat: str) -> Track | None:
        """One statistic of one tensor over the window; None if no row has the tensor or the statistic is not measured.

        Args:
            tensor: `grad`, `output` …; empty for a number of the whole step.
            stat: the statistic, or the tag of the number.

        Raises:
            RuleError: the rule does not name the pair in its `needs`.
        """
        key = tensor, stat
        reading = self._readings.now(self._window.steps)
        if key in reading.tracks:
            return reading.tracks[key]
        if key not in self._needed:
            raise RuleError(f"{stat!r} of {tensor!r} is not collected; add ({tensor!r}, {stat!r}) to the rule's needs")
        if self._window.missing(key):
            self._fill(key)
        names = self._names.get(tensor, ()) if tensor else ("",)
        track = None
        if key in self._window and names:
            columns = self._reader.columns.get(tensor) if self._reader else None
            rows = columns.rows if columns else np.full(len(names), -1, dtype=np.intp)
            track = Track(tensor, stat, names, rows, self._window.steps, self._window.read(key), reading.new)
        reading.tracks[key] = track
        return track

    def has(self, tensor: str, stat: str) -> bool:
        """Whether `track` returns something. The values of rows are not read for it, which makes it cheap.

        Args:
            tensor: as of `track`.
            stat: as of `track`.

        Raises:
            RuleError: as of `track`.
        """
        return self.first_lacking(((tensor, stat),)) is None

    def first_lacking(self, needs: Iterable[Key]) -> Key | None:
        """The first of some pairs for which `has` is false; None if there is none.

        Args:
            needs: pairs of a tensor and a statistic.

        Raises:
            RuleError: as of `track`.
        """
        held = self._reader.held if self._reader else ()
        for need in needs:
            if need not in held and self.track(*need) is None:
                return need
        return None

    def early(self, tensor: str, stat: str) -> Array | None:
        """The early level of each row, float64 [rows]: the median of its own measurements 5 to 24, counted from 0.

        NaN for a row with fewer measurements. None where `track` is None. A resume keeps it.
        """
        if self.track(tensor, stat) is None:
            return None
        return self._early[tensor, stat].medians

    def start(self, tensor: str, stat: str) -> Array | None:
        """The first measurement of each row, float64 [rows]; NaN for a row without one.

        None where `track` is None. A resume keeps it.
        """
        if self.track(tensor, stat) is None:
            return None
        return self._early[tensor, stat].firsts

    def loss(self) -> Track | None:
        """The loss of each step; None if it is not measured."""
        return self.track(*LOSS)

    def loss_falls(self, window: int = 50) -> bool | None:
        """Whether the loss falls: its median in the last quarter is below that in the first by more than its noise.

        Args:
            window: the number of last steps with a loss to judge.

        Returns:
            None if there are fewer steps with a loss.
        """
        if self._falls.get(window, (-1, None))[0] != self.step:
            loss = self.loss()
            self._falls[window] = self.step, None if loss is None else falls(loss.values[:, 0], window)
        return self._falls[window][1]

    def early_losses(self) -> Array:
        """The losses of the steps 20 to 40 of the run, as far as they were measured, float64 [steps]. A resume keeps them."""
        self.loss()
        return self._early_losses.values

    def kinds_since(self, step: int) -> frozenset[str]:
        """The kinds of what lookouts have seen at a step or later."""
        return self._facts.kinds_since(step)

    def facts_at(self, step: int) -> StepFacts | None:
        """How a step of the window trained; None if unknown. The same object as long as nothing changed."""
        return self._facts.at(step)

    def sighting_at(self, kind: str, step: int) -> Sighting | None:
        """What a lookout has seen of a step, from the lookout itself or from the facts; None if nothing is known.

        Args:
            kind: of the sighting.
            step: of the window.
        """
        asked = () if self.ask is None else self.ask(step)
        known = (each for facts in self._facts.since(step) for each in facts.sightings if each.at == step)
        return next((each for each in (*asked, *known) if each.kind == kind), None)

    def are_due(self, tensor: str) -> NDArray[np.bool_]:
        """Whether each row of a tensor was to be measured at each step, bool [window, rows]; the rows as in its tracks.

        After a resume, no row counts as due at the steps before it.
        """
        reader, names = self._reader, self._names.get(tensor, ())
        result = np.zeros((len(self.steps), len(names)), dtype=np.bool_)
        if reader is not None and len(names) == len(reader.columns.get(tensor, ((), ()))[0]):
            for i, step in enumerate(self.steps.tolist()):
                if step in self._due:
                    result[i] = reader.are_due(tensor, self._due[step])
        return result

    def _fill(self, key: Key) -> None:
        """Read one statistic of the views from which it has not been read."""
        missing = self._window.missing(key)
        views = self._views[-missing:] if missing else []
        values = self._reader.read(key, views) if views and self._reader else None
        self._window.fill(key, values)
        if values is not None:
            if key not in self._early:
                self._early[key] = EarlyLevel(values.shape[1])
            self._early[key].add(values)
            if key == LOSS and values.shape[1]:
                steps = self._window.steps[-len(values) :]
                self._early_losses.add(steps - self.first_step, values[len(values) - len(steps) :, 0])

    def _fill_all(self) -> None:
        for key in self.needs:
            self._fill(key)
        self._views = []

    def _release_views(self) -> None:
        """Drop the views that nothing is to be read from, and facts that are older than the window."""
        for key in self.needs:
            if self._window.missing(key) >= _MOST_VIEWS:
                self._fill(key)
        waiting = max(map(self._window.missing, self.needs))
        self._views = self._views[len(self._views) - waiting :]
        first = int(self._window.steps[0])
        self._facts.forget_before(first)
        self._due = {step: due for step, due in self._due.items() if step >= first}

    def _change_rows(self, index: RowIndex) -> None:
        self._fill_all()
        self._reader = Reader(index, self.needs)
        self._take_over_names({tensor: columns.names for tensor, columns in self._reader.columns.items()})

    def _take_over_names(self, new: Mapping[str, tuple[str, ...]]) -> None:
        """Move the numbers of each row to its column in a new row index. A row that is new there starts without numbers."""
        for tensor, names in new.items():
            old = self._names.get(tensor)
            if old is not None and old != names:
                columns = np.array([old.index(name) if name in old else -1 for name in names], dtype=np.intp)
                for key in [key for key in self._early if key[0] == tensor]:
                    self._window.rename(key, columns)
                    self._early[key].rename(columns)
            self._names[tensor] = names

    def _go_back(self, step: int) -> None:
        self._fill_all()
        if self._reader:
            self._reader.forget_views()
        self._window.forget_from(step)
        self._facts.forget_from(step)
        self._due = {known: due for known, due in self._due.items() if known < step}
        self._readings.go_back(step)
        self._falls.clear()
        self._early_losses.forget_from(step - self.first_step)
        if not len(self._window.steps):
            self._early.clear()

    def state_dict(self) -> dict[str, Any]:
        """The window as plain values, for a checkpoint."""
        self._fill_all()
        return {
            "step": self.step,
            "first_step": self.first_step,
            "window": self._window.state_dict(),
            "names": {tensor: list(names) for tensor, names in self._names.items()},
            "early": [[*key, *level.state()] for key, level in self._early.items()],
            "early_losses": self._early_losses.state(),
            "facts": self._facts.state(),
            "between": self.steps[~self._window.of_rows].tolist(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with the window of a `state_dict`.

        Raises:
            RuleError: the state is damaged; the evidence is then unchanged.
        """
        try:
            step, first_step = int(state["step"]), int(state["first_step"])
            names = {str(k): tuple(map(str, each)) for k, each in dict(state["names"]).items()}
            between = {*map(int, state["between"])}
            window = Window.from_state(self._window.size, state["window"], between)
            early = {(str(e[0]), str(e[1])): EarlyLevel.from_state(e[2:]) for e in state["early"]}
            early_losses = EarlyLosses.from_state(state["early_losses"])
            facts = FactsHistory.from_state(state["facts"])
            check_widths(window, early, names)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise RuleError(f"evidence: the saved state is damaged: {error}") from error
        self.step, self._names, self._window, self._early, self._facts = step, names, window, early, facts
        self.first_step, self._early_losses = first_step, early_losses
        self.facts, self._has_between = facts.last, bool(between)
        self._reader, self._views, self._due = None, [], {}
        self._readings.forget()
        for key in self.needs:
            if key not in window:
                window.fill(key, None)
        self._falls.clear()
