"""Observer: fills the table of one monitor, through hooks on modules and in the phases of an optimizer's step."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from lightning_hooks.engine.participants.actions import AbsentParts, gradient_of
from lightning_hooks.engine.participants.overhead import Overhead
from lightning_hooks.engine.participants.participant import ModuleRule, Participant, PhaseMemo
from lightning_hooks.engine.participants.shards import tensor_parallel_place
from lightning_hooks.engine.watching.pairs import PairWatch, comparable
from lightning_hooks.engine.watching.param_reader import ParamReader, TensorRows
from lightning_hooks.engine.watching.row_fallback import RowFallback
from lightning_hooks.errors import RuleError, StoppedError
from lightning_hooks.hooks import Action
from lightning_hooks.plan.plan import Plan
from lightning_hooks.plan.rows import LOSS, Row
from lightning_hooks.rules import MODULE_TENSORS
from lightning_hooks.rules.patterns import Target
from lightning_hooks.stats.measurement import Measurement, UnmeasurableError
from lightning_hooks.stats.merged_state import MergedState, PendingState
from lightning_hooks.stats.processes import world_size
from lightning_hooks.stats.sharing import measured_for
from lightning_hooks.stats.table import Table
from lightning_hooks.tensor_kinds import is_sharded


class Observer(Participant):
    """Watches the rows of a plan, in one stage. Outside training a whole run is one step: all its batches are merged.

    An observer that has `failed` measures nothing more, but exchanges its table at the end of each step until all ranks know of
    the failure and the observer is `stopped`: the other ranks would wait for a rank that stopped alone. For the same reason it
    goes on reading sharded tensors, whose parts may have to be gathered or added up.

    Args:
        plan: the rows.
        stage: `train`, or another stage; then the plan has rows of `input` and `output` only.
        on_error: `raise`, or `warn`: stop watching, say so once, and let training continue.
        device: the device of the table.
        alone: whether the table is not merged over ranks, even if a process group exists. Then of a sharded tensor what this
            rank holds is measured, and no other rank is waited for.
        label: how error messages name the callback; empty if they need no name.

    Attributes:
        alone: as given.
        factor: how many times longer intervals are than the rules say.
        schedules: the schedules that are due in the current step.
        uncalled: the watched modules that the first watched step did not call, with their classes; None before that step.
    """

    def __init__(
        self,
        plan: Plan,
        stage: str = "train",
        *,
        on_error: str = "raise",
        device: torch.device | str = "cpu",
        alone: bool = False,
        label: str = "",
    ) -> None:
        self.plan = plan
        self.stage = stage
        self.reports = stage == "train"
        self.on_error = on_error
        self.failed = False
        self.stopped = False
        self.factor = 1
        self.overhead: Overhead | None = None
        self.uncalled: dict[str, str] | None = None
        self.alone = alone
        self._label = label
        self.absent = AbsentParts()
        index = plan.index
        self.table = Table(
            len(plan.rows),
            plan.kept,
            plan.metrics,
            plan.copied_rows,
            device,
            index.magnitudes,
            tensor_parallel_place(self.all_targets()) if world_size(alone) > 1 else (0, 1),
            alone,
            plan.label,
        )
        self.pairs = PairWatch(plan, self.table)
        self.fallback = RowFallback(self)
        self._reader = ParamReader(plan, self.table, alone)
        self.acts_before = "before_step" in self._reader.phases
        self.reads_final = "final" in self._reader.phases
        self.reads_updates = "after_update" in self._reader.phases
        self._intervals = [(schedule, schedule) for schedule in plan.schedules]
        self.graph_key = self.schedules = frozenset(plan.schedules)
        self._write_loss: Callable[[Tensor], None] | None = None
        self._focus_until = 0  # the step before which every row is measured
        self._last_asked = -1
        self._sharded = any(is_sharded(target.value) for target in self.all_targets())

    def due(self, step: int, stage: str) -> Hashable | None:
        if self.stopped or stage != self.stage:
            return None
        is_focused = step < self._focus_until
        self.schedules = frozenset(schedule for schedule, widened in self._intervals if is_focused or widened.due(step))
        self._last_asked = step
        return self.schedules or None

    def begin_step(self, step: int, stage: str, reporting: bool) -> None:
        self.fallback.note_order()
        self.table.expect(self.plan.on_request_at(self.schedules))
        if stage != "train":
            return
        if self.overhead is not None:
            self.overhead.begin()
        self.table.clear()
        self.pairs.begin(step)

    def note_cost(self, own: float, wall: float | None) -> None:
        seconds, calls = self.fallback.take_cost()
        if self.overhead is not None:
            self.overhead.note(own + seconds, wall, calls)

    def widen(self, factor: int) -> None:
        """From the next step on, make every interval `factor` times as long as its rule says; rows keep their schedules."""
        if factor != self.factor:
            self.factor = factor
            if self.overhead is not None:
                self.overhead.restart()
            self._intervals = [(schedule, schedule.widened(factor)) for schedule in self.plan.schedules]

    def focus(self, steps: int) -> None:
        """Measure every row at each of the next steps, whatever the schedules say. All ranks must call it at the same step."""
        self._focus_until = max(self._focus_until, self._last_asked + 1 + steps)

    def exchange(self, facts: int = 0) -> PendingState:
        """The table merged over ranks, perhaps still on its way to the CPU; read it before the next write. Collective.

        Args:
            facts: the checksum of the facts of the step.
        """
        factor = self.factor if self.overhead is None else self.overhead.wanted_factor(self.factor)
        return self.table.exchange(stop=self.failed, factor=factor, facts=facts)

    def agree(self, merged: MergedState) -> None:
        """Do what ranks requested in an exchange. All ranks must call `agree` at the same step.

        Raises:
            StoppedError: the monitor has failed on some rank. Raised on all ranks, before anything else is exchanged.
        """
        if merged.stop:
            raise StoppedError("it failed on another rank")
        # Widen the intervals before anything that may fail on this rank alone. Ignore a factor that is not greater: a rank
        # requested it before the intervals grew.
        if self.stage == "train" and merged.factor > self.factor:
            self.widen(merged.factor)

    def end_step(self) -> None:
        self.absent.warn()

    def all_targets(self) -> Iterable[Target[Any]]:
        return (row.target for row in self.plan.rows if row.tensor != LOSS)

    def refreshed(self) -> None:
        self._reader.forget()

    left = refreshed

    def actions(self, key: Any) -> Iterable[Action]:
        on_request = self.plan.on_request_at(key)
        for row in self.plan.rows:
            if row.kind in MODULE_TENSORS and row.due(key):
                tensor, backward = gradient_of(row.kind)
                yield Action(
                    row.target.value,
                    tensor,
                    self.table.writer(row.index, self.fallback, [n for n, rows in on_request.items() if row.index in rows]),
                    row.path,
                    merge=partial(self.fallback.merge, row.index),
                    absent=partial(self.absent.note, f"watch: {row.tensor!r}", row.name) if row.path else None,
                    backward=backward,
                )
        for row in self.pairs.summed:
            if row.due(key):
                merge = partial(self._add_micro_batch, row)
                yield Action(row.target.value, "grad", measured_for(merge), merge=merge)

    def module_rules(self, key: Any = None) -> Iterable[ModuleRule]:
        if self.stage == "train" and not self.stopped:
            watched = [row for row in self.plan.rows if row.kind in MODULE_TENSORS and (key is None or row.due(key))]
            yield ModuleRule(f"{self._label}watch", [row.target for row in watched])

    def before_step(self, optimizer: Optimizer, memo: PhaseMemo) -> None:
        self._read("before_step", optimizer, memo.scale)
        if "pairs" not in self.plan.index.kept or not self._reads:
            return
        for due in self._reader.due("before_step", optimizer, self.schedules):
            if due.tensor == "grad":
                self._compare(due, memo.scale)

    def final(self, optimizer: Optimizer, memo: PhaseMemo) -> None:
        self._read("final", optimizer, memo.scale)

    def before_update(self, optimizer: Optimizer, memo: PhaseMemo) -> None:
        if self._reads:
            with self.guard():
                self._reader.copy_parameters(optimizer, self.schedules)

    def after_update(self, optimizer: Optimizer, memo: PhaseMemo) -> None:
        if memo.skipped:
            return
        self._read("after_update", optimizer)
        # The loss scaler calls a fused optimizer even after an overflow, which then leaves the parameters as they are. Withdraw
        # the rows if there was an overflow.
        if memo.scale is not None and memo.found_inf is not None:
            due = self._reader.due("after_update", optimizer, self.schedules)
            with self.guard():
                self.table.withdraw([row for each in due for row in each.offsets.rows], memo.found_inf)

    @property
    def _reads(self) -> bool:
        """Whether the observer reads parameters and their gradients."""
        return self._sharded or not self.failed

    def _add_micro_batch(self, row: Row, measurement: Measurement) -> None:
        if self.failed:
            return
        with self.guard():
            try:
                self.pairs.add(row, measurement)
            except UnmeasurableError as error:
                self.fallback.warn_unmeasurable(row.index, error)

    @torch.no_grad()
    def _compare(self, due: TensorRows, scale: Tensor | None) -> None:
        """Compare gradients with those of the previous watched step."""
        rows = due.offsets.rows
        gradients: dict[int, Tensor] = {}
        for position in self.pairs.note(rows):
            # If one row fails, this rank must still take part in the collective of the next row. Do not use `guard`, which
            # takes longer: there may be thousands of rows.
            try:
                gradient = comparable(due.parameters[position])
            except Exception as error:
                self.fail(error)
            else:
                if gradient is not None:
                    gradients[rows[position]] = gradient
        with self.guard():
            self.pairs.compare(gradients, scale)

    def _read(self, phase: str, optimizer: Optimizer, scale: Tensor | None = None) -> None:
        """Measure the tensors of parameters that exist in a phase, and set their rows."""
        if not self._reads:
            return
        with self.guard():
            for row, measurement in self._reader.read(phase, optimizer, self.schedules, scale):
                self.fallback.put(row, measurement)

    def note_loss(self, loss: Tensor, batches: int = 1) -> None:
        """Merge a loss into the row of the loss, before its backward.

        Args:
            loss: as it is differentiated: multiplied by the loss scale, and divided by the batches of an optimizer's step.
            batches: the number of these batches.
        """
        row, fallback = self.plan.loss_row, self.fallback
        if row is None or self.failed:
            return
        with self.account, self.guard():
            if self._write_loss is None:
                self._write_loss = self.table.writer(row, fallback, ())
            cost = fallback.calls, fallback.nanoseconds
            self._write_loss(loss.detach() if batches == 1 else loss.detach() * batches)
            # Restore the counters, which stand for calls of hooks: no hook was called, and `account` has measured the time.
            fallback.calls, fallback.nanoseconds = cost

    def scaled_by(self, factor: Tensor | None) -> None:
        """Multiply gradients that were measured under an old loss scale by `factor`, the new scale over the old one."""
        if factor is not None:
            self.table.rescale(self.plan.loss_scaled, factor)

    def note_uncalled(self, called: set[int]) -> None:
        """Note the watched modules that the first watched step did not call; later steps change nothing.

        Args:
            called: the ids of the modules that the step has called.
        """
        if self.uncalled is None:
            rules = self.module_rules(self.schedules)
            targets = [target for rule in rules for target in rule.targets if id(target.value) not in called]
            self.uncalled = {target.name: type(target.value).__name__ for target in targets}

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Surrounds work of the observer that runs inside the user's code: an error goes through `on_error`."""
        try:
            yield
        except Exception as error:
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """Handle an error of this package: raise it, or with `on_error="warn"` stop watching."""
        if isinstance(error, RuleError) and self._label and not str(error).startswith(self._label):
            error = RuleError(f"{self._label}{error}")
        if self.on_error == "raise":
            raise error
        self.stopped = self.stopped or self.table.ranks == 1 or isinstance(error, StoppedError)
        self.reports = self.reports and not self.stopped
        if not self.failed:
            self.failed = True
            self.fallback.direct = False
            cause = "".join((f"{type(error).__name__}: {error}", *(f" ({note})" for note in getattr(error, "__notes__", ()))))
            warnings.warn(f"a StatsMonitor stopped watching after {cause}; training continues", stacklevel=2)
