"""One monitor at work: fills its table through hooks and reads its parameters at the right moments."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from lightning_hooks.engine.absent import AbsentParts
from lightning_hooks.engine.monitor.optimizer_state import state_of
from lightning_hooks.engine.monitor.pairs import PairWatch
from lightning_hooks.engine.monitor.param_reads import read, read_alone, read_changes
from lightning_hooks.engine.monitor.param_rows import DueRows, ParamRows
from lightning_hooks.engine.monitor.row_visitor import Detour, RowVisitor
from lightning_hooks.engine.monitor.snapshots import Snapshots
from lightning_hooks.engine.overhead import Overhead
from lightning_hooks.engine.participant import HasParameters, ModulePart, Participant, PhaseMemo
from lightning_hooks.engine.plan.plan import FLOWING, Plan
from lightning_hooks.errors import RuleError, StoppedError
from lightning_hooks.records.row_index import Due
from lightning_hooks.rules import MODULE_TENSORS, parse_tensor
from lightning_hooks.rules.patterns import Target
from lightning_hooks.rules.schedule import EveryN
from lightning_hooks.stats.host_copy import MergedState, PendingState
from lightning_hooks.stats.measurement import Measurement, UnmeasurableError, UnscaledMeasurement
from lightning_hooks.stats.ranks import world_size
from lightning_hooks.stats.table import Table
from lightning_hooks.stats.tensor_kinds import TRANSFORMED, inside_transform

_GRAD = attrgetter("grad")


class Observer(Participant):
    """Watches the rows of a plan.

    Args:
        plan: the rows.
        on_error: `raise`, or `warn`: detach, say so once, and let training go on.
        device: where the table lives.
        order: place among the participants.

    `calls_checked` says whether modules that are never called were looked for.

    One that has `failed` measures nothing any more, but goes on exchanging tables until all ranks know and it is `gone`: a
    rank that left alone would keep the others waiting.
    """

    stage = "train"
    reads = True

    def __init__(
        self, plan: Plan, *, on_error: str = "raise", device: torch.device | str = "cpu", order: tuple[int, ...] = (0,)
    ) -> None:
        self.plan = plan
        self.order = order
        self.reports = True
        self.on_error = on_error
        self.failed = False
        self.gone = False
        self.factor = 1
        self.overhead: Overhead | None = None
        self.detour = Detour(self)
        self._intervals = [(schedule, schedule) for schedule in plan.schedules]
        self._last_due: tuple[int, Due] = (-1, frozenset())
        pairs = plan.pair_rows
        self.table = Table(
            len(plan.rows), plan.histogram_rows, plan.users, plan.replicated_rows, pairs, device, plan.needs_magnitudes
        )
        self.pairs = PairWatch(plan, self.table) if pairs else None
        self.schedules: Due = frozenset()
        self.scale: Tensor | None = None
        self._all_due: Due = frozenset(plan.schedules)
        self._known_due: dict[tuple[EveryN, ...], Due] = {}  # one object for equal sets: comparing them costs nothing
        self._params = ParamRows(plan, self.table)
        self._snapshots = Snapshots()
        self._unmeasurable: set[str] = set()
        self._absent: set[str] = set()  # tensors of an optimizer's state that one did not have
        self.calls_checked = False
        self.absent = AbsentParts()
        self.ran: list[int] | None = []  # rows of modules as they are measured, until the first step has ended

    @property
    def ever(self) -> Hashable:  # type: ignore[override]
        """Every schedule."""
        return self._all_due

    def due(self, step: int, stage: str) -> Hashable | None:
        """The schedules that are due at a step."""
        if self.gone or stage != self.stage:
            return None
        return self._due_at(step) or None

    def rests_until(self, step: int) -> int | None:
        """The next step at which a schedule is due."""
        if self.gone or self.stage != "train":
            return None
        return min((at for _, widened in self._intervals if (at := widened.next(step)) is not None), default=None)

    def _due_at(self, step: int) -> Due:
        if step != self._last_due[0]:
            due: list[EveryN] = []
            for schedule, widened in self._intervals:
                if widened.due(step):
                    due.append(schedule)
            known = self._all_due
            if len(due) < len(self._intervals):
                known = self._known_due.setdefault(tuple(due), frozenset(due))
            self._last_due = step, known
        return self._last_due[1]

    def begin(self, step: int, stage: str, reporting: bool) -> None:
        """Start with an empty table."""
        self.schedules = self._due_at(step)
        if self.overhead is not None:
            self.overhead.begin()
        self.follow()
        self.table.clear()
        if self.pairs is not None:
            self.pairs.begin()

    def follow(self) -> None:
        """Note in the first step in which order rows of modules are measured: not straight from the memory of tensors then."""
        if self.ran is None:
            return
        if self.ran:
            self.plan.index.ran_in(self.ran)
            self.ran = None
        self.detour.direct = self.ran is None and not self.failed

    def lap(self, own: float, wall: float | None, steps: int = 1) -> None:
        """Note what the step has cost."""
        seconds, calls = self.detour.spent()
        if self.overhead is not None:
            self.overhead.lap(own + seconds, wall, steps, calls)

    def widen(self, factor: int) -> None:
        """From the next step on, make every interval so many times as long as its rule says; rows keep their schedules."""
        if factor != self.factor:
            self.factor = factor
            if self.overhead is not None:
                self.overhead.begin_anew()
            self._intervals = [(schedule, schedule.widened(factor)) for schedule in self.plan.schedules]
            self._last_due = (-1, frozenset())

    def exchange(self) -> PendingState:
        """The table merged over ranks, on its way to the CPU; read it before the next write. All must ask together."""
        wish = self.factor if self.overhead is None else self.overhead.wish(self.factor)
        return self.table.exchange(stop=self.failed, factor=wish)

    def heed(self, merged: MergedState) -> None:
        """Do what the ranks voted for in an exchange. All must do so at the same step, and all then widen alike.

        Args:
            merged: what came of it.

        Raises:
            StoppedError: the monitor has failed on some rank. Raised on all, before anything else is exchanged.
        """
        if merged.stop:
            raise StoppedError("it failed on another rank")
        # Now, before anything can fail on this rank alone. A vote from before intervals have grown does not shrink them.
        if self.stage == "train" and merged.factor > self.factor:
            self.widen(merged.factor)

    def ended(self) -> None:
        """Say which parts no module had."""
        self.absent.warn()

    def all_targets(self) -> Iterable[Target[Any]]:
        """Those of its rows."""
        return (row.target for row in self.plan.rows)

    def renewed(self) -> None:
        """Find rows by the parameters that there are now."""
        self._params.renew()
        self._snapshots.clear()

    def left(self) -> None:
        """Keep no copies of parameters."""
        self._snapshots.clear()

    def module_parts(self, key: Any) -> Iterable[ModulePart]:
        """A slot for every module tap that is due."""
        for row in self.plan.rows:
            if row.kind in MODULE_TENSORS and row.due(key):
                yield ModulePart(row.target.value, row.kind, row.path, RowVisitor(self, row.index))

    def param_parts(self, key: Any) -> Iterable[tuple[nn.Parameter, Any]]:
        """What sees the gradients of micro-batches, where a statistic is about them."""
        return () if self.pairs is None else self.pairs.param_parts(lambda row: row.due(key), self.say_unmeasurable)

    @property
    def needs_updates(self) -> bool:
        """Whether any rule watches what there is only around the update."""
        return any(parse_tensor(tensor)[0] in ("update", "state") for tensor in self.plan.tensors)

    def before_step(self, optimizer: HasParameters, memo: PhaseMemo) -> None:
        """Read `param` and `grad` of the optimizer's parameters."""
        found = self._params.due(optimizer, self.schedules, "param", "grad")
        params, grads = found.each
        if memo.shared or memo.scale is not None:
            read(self, params, "param", memo)
            read(self, grads, "grad", memo, _GRAD, memo.scale)
        else:  # in one call
            read_alone(self, found.all, [*params.parameters, *map(_GRAD, grads.parameters)])
        if self.pairs is not None:
            with torch.no_grad():
                for parameter, row in grads:
                    if parameter.grad is not None:
                        self.pairs.take(row, parameter.grad if memo.scale is None else parameter.grad / memo.scale)

    def at_final(self, optimizer: HasParameters, memo: PhaseMemo) -> None:
        """Read `final_grad`."""
        self._read(optimizer, "final_grad", memo, _GRAD, memo.scale)

    def before_update(self, optimizer: HasParameters, memo: PhaseMemo) -> None:
        """Keep a copy of the parameters whose update is watched."""
        parameters: Sequence[nn.Parameter] = self._due_rows(optimizer, "update").parameters
        kinds = set(map(type, parameters))
        if any(issubclass(kind, UninitializedParameter) for kind in kinds):  # these have no value before their first step
            parameters = [p for p in parameters if not isinstance(p, UninitializedParameter)]
        if memo.before:
            parameters = [p for p in parameters if id(p) not in memo.before]
        memo.before.update(self._snapshots.take(id(optimizer), parameters))

    def after_update(self, optimizer: HasParameters, memo: PhaseMemo) -> None:
        """Read `update`, value after the step less value before, and `state`; nothing where the step did not happen."""
        if memo.skipped:
            return

        def change(parameter: nn.Parameter) -> Tensor | None:
            before = memo.before.get(id(parameter))
            if before is None:
                return None
            # In float32 at least: the difference of two numbers of half precision need not be one.
            return parameter.detach().to(torch.promote_types(parameter.dtype, torch.float32)) - before

        with torch.no_grad():
            if memo.shared:
                self._read(optimizer, "update", memo, change)
            else:
                read_changes(self, self._due_rows(optimizer, "update"), memo.before, change)
            try:
                for tensor in self._params.of_state:
                    self._read(optimizer, tensor, memo, partial(self._state, optimizer, tensor))
            except RuleError as error:
                self.fail(error)
            if memo.scale is not None and memo.found_inf is not None:  # a fused optimizer is called even where it does nothing
                tensors = ("update", *self._params.of_state)
                self.table.withdraw([row for t in tensors for row in self._due_rows(optimizer, t).rows], memo.found_inf)

    def _state(self, optimizer: HasParameters, tensor: str, parameter: nn.Parameter) -> Tensor | None:
        """A tensor of the optimizer's state; None where there is none and every rule that asks for it allows that."""
        try:
            return state_of(optimizer, parameter, tensor.removeprefix("state."))
        except RuleError as error:
            asking = [(i, known.rule) for i, known in enumerate(self.plan.rules) if tensor in (known.rule.tensors or ())]
            position, rule = next(((i, rule) for i, rule in asking if rule.strict), asking[0])
            if rule.strict:
                raise RuleError(f"watch[{position}].{error}. Set strict=False if that is meant") from error
            if tensor not in self._absent:
                self._absent.add(tensor)
                warnings.warn(f"watch[{position}].{error}", stacklevel=2)
            return None

    def scaled_by(self, scale: Tensor, factor: Tensor | None) -> None:
        """Note the loss scale; bring what flowed under an old one to the new."""
        self.scale = scale
        if factor is not None:
            self.table.rescale(self.plan.flowing, factor)

    def warn_uncalled(self, called: set[int]) -> None:
        """Say which watched modules a step did not call; once is enough, which `calls_checked` tells.

        Args:
            called: the ids of those that were.
        """
        self.calls_checked = True
        watched = [row for row in self.plan.rows if row.kind in MODULE_TENSORS and row.due(self.schedules)]
        idle = list(dict.fromkeys(row.name for row in watched if id(row.target.value) not in called))
        if idle:
            shown = ", ".join(idle[:10]) + (f" and {len(idle) - 10} more" if len(idle) > 10 else "")
            warnings.warn(
                f"matched modules were not called in the first watched step: {shown}. Usual reasons: the forward uses their "
                "weights directly, calls another method than forward, does not need them in this step, or is compiled as a "
                "part of a function (compile the module instead)",
                stacklevel=2,
            )

    def fail(self, error: Exception) -> None:
        """An error of ours: raise it, or with `on_error="warn"` watch no more.

        Raises:
            Exception: the error, unless `on_error` is `warn`.
        """
        if self.on_error == "raise":
            raise error
        self.gone = world_size() == 1 or isinstance(error, StoppedError)
        if not self.failed:
            self.failed = True
            self.detour.direct = False
            warnings.warn(
                f"a StatsMonitor stopped watching after {type(error).__name__}: {error}; training goes on", stacklevel=2
            )

    def take(self, row: int, look: Measurement, *, last: bool) -> None:
        """Put a measurement into a row.

        Args:
            row: the index of the tap.
            look: what was seen.
            last: whether it takes the place of what was seen before in this step.
        """
        if self.failed:
            return
        try:
            if last:
                self.table.put(row, look)
            elif self.scale is not None and row in self.table.users and self.plan.rows[row].kind in FLOWING:
                # Moments are divided at the end of the step.
                self.table.add(row, look, UnscaledMeasurement(look, self.scale).tensor)
            else:
                self.table.add(row, look)
        except UnmeasurableError as error:
            self.say_unmeasurable(row, error)
        except StopIteration as error:  # would end the epoch silently
            self.fail(RuntimeError(f"a statistic of {self.plan.rows[row].name} raised StopIteration: {error}"))
        except Exception as error:
            if inside_transform(look.tensor):  # of a user's statistic, say
                self.say_unmeasurable(row, UnmeasurableError(TRANSFORMED))
            else:
                self.fail(error)

    def say_unmeasurable(self, row: int, error: UnmeasurableError) -> None:
        """Warn of a tensor that cannot be read: once for each module or parameter, once in all for what a transform hides.

        Args:
            row: the index of the tap.
            error: says what kind of tensor it is.
        """
        tap = self.plan.rows[row]
        key = TRANSFORMED if str(error) == TRANSFORMED else tap.name
        if key not in self._unmeasurable:
            self._unmeasurable.add(key)
            warnings.warn(f"{tap.tensor} of {tap.name} is not measured: a {error} has no readable elements", stacklevel=2)

    def _read(self, optimizer: HasParameters, tensor: str, memo: PhaseMemo, value_of: Any, scale: Tensor | None = None) -> None:
        read(self, self._due_rows(optimizer, tensor), tensor, memo, value_of, scale)

    def _due_rows(self, optimizer: HasParameters, tensor: str) -> DueRows:
        return self._params.due(optimizer, self.schedules, tensor).all
