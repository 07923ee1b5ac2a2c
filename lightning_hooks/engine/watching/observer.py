"""Observer: fills the table of one stage of a run, through hooks on modules and in the phases of an optimizer's step."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from lightning_hooks.engine.participants.actions import AbsentParts, gradient_of
from lightning_hooks.engine.participants.participant import Participant, PhaseMemo
from lightning_hooks.engine.participants.shards import tensor_parallel_place
from lightning_hooks.engine.watching.guard import Guard
from lightning_hooks.engine.watching.pairs import PairWatch, comparable
from lightning_hooks.engine.watching.param_reader import ParamReader, TensorRows
from lightning_hooks.engine.watching.row_fallback import RowFallback
from lightning_hooks.engine.watching.row_owners import RowOwners, owners_requesting
from lightning_hooks.engine.watching.share import Share
from lightning_hooks.engine.watching.whole_gradient import WholeGradient
from lightning_hooks.engine.watching.whole_rows import WholeRows
from lightning_hooks.hooks import Action, RowInGraph
from lightning_hooks.plan.plan import Plan
from lightning_hooks.plan.rows import WHOLE, Due, Row
from lightning_hooks.rules import MODULE_TENSORS
from lightning_hooks.rules.patterns import Target
from lightning_hooks.snapshot.contents import are_same
from lightning_hooks.stats import kernels
from lightning_hooks.stats.measurement import Measurement, UnmeasurableError, blamed
from lightning_hooks.stats.merged_state import MergedState, PendingState
from lightning_hooks.stats.processes import world_size
from lightning_hooks.stats.table import Table
from lightning_hooks.tensor_kinds import is_sharded


class Observer(Participant):
    """Watches the rows of a table, in one stage. Outside training a whole run is one step: all its batches are merged.

    Each owner of the table has a share of it, and a participant of its own, which reads in the turn of the owner what depends
    on the order of callbacks. The observer does the rest, once for all of them.

    Args:
        plan: the plan of the table.
        shares: of its owners, in the order of their numbers.
        stage: `train`, or another stage; then the plan has rows of `input` and `output` only.
        device: the device of the table.
        alone: whether this process is the only one, even if a process group exists.

    Attributes:
        demands: what is due in the current step.
        due_shares: the schedules of each share that are due in the current step, by its number; only shares with any.
        guard: surrounds work that runs inside the user's code: an error goes through `on_error` of all shares that are due.
        failed: whether all owners have failed on this rank.
        whole_rows: takes the loss and the batch of a step.
        held: the rows that only readers of the table demand. Of a sharded tensor, what this rank holds is measured for them,
            and no other rank is waited for.
    """

    def __init__(
        self,
        plan: Plan,
        shares: Sequence[Share],
        stage: str = "train",
        *,
        device: torch.device | str = "cpu",
        alone: bool = False,
    ) -> None:
        self.plan = plan
        self.shares = list(shares)
        self.stage = stage
        self.guard = Guard(self.fail)
        self.failed = False
        self.due_shares: dict[int, Due] = {}
        readers = {share.part.number for share in self.shares if share.publisher is None}
        self.held = {row.index for row in plan.rows if readers.issuperset(owners_requesting(row))} if readers else set()
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
            len(self.shares),
        )
        # Code of a user is at the cost of the owners that ask for it. If nobody is charged alone, time is split.
        self._charged = {name: share for share in reversed(self.shares) for name in share.part.own_names}
        if self._charged:
            self.table.measuring.around = self._account_of
        self.pairs = PairWatch(plan, self.table)
        self.fallback = RowFallback(self)
        self._reader = ParamReader(plan, self.table, self.held)
        self._owners = RowOwners(plan, len(self.shares), self._reader.updates_of)
        self._whole_gradient = WholeGradient(plan, self.table.ranks)
        self.reads_before_step = "before_step" in self._reader.phases or self._whole_gradient.row is not None
        self.reads_final = "final" in self._reader.phases
        self.reads_updates = "after_update" in self._reader.phases
        self.demands: Due = frozenset(plan.schedules)
        self.graph_key: Hashable = self.demands
        self._demands_of: dict[tuple[Due, ...], Due] = {}
        self._cost = 0.0, 0
        self.whole_rows = WholeRows(self)
        self._compares = "pairs" in index.kept
        self._device = self.table.state.device
        self._told_capture = False
        self._sharded = any(is_sharded(target.value) for target in self.all_targets())

    @property
    def stopped(self) -> bool:
        """Whether all owners have stopped."""
        return all(share.stopped for share in self.shares)

    @property
    def has_lost_a_share(self) -> bool:
        """Whether an owner has stopped or failed, so that what reads its views knows nothing of later steps."""
        return any(share.stopped or share.failed for share in self.shares)

    def step_key(self, step: int, stage: str) -> Hashable | None:
        if stage != self.stage:
            return None
        due = {share.part.number: share.due(step) for share in self.shares}
        self.due_shares = {number: each for number, each in due.items() if each}
        key = tuple(due.values())
        if key not in self._demands_of:
            self._demands_of[key] = frozenset().union(*(self.shares[n].part.demands(each) for n, each in due.items()))
        self.demands = self._demands_of[key]
        return self.demands or None

    def begin_step(self, step: int, stage: str, reporting: bool) -> None:
        shares = {number: self.shares[number] for number in self.due_shares}
        full = {number: share for number, share in shares.items() if not share.is_between}
        self.fallback.begin_step([(share, self.due_shares[number]) for number, share in full.items()])
        self.table.expect(self.plan.on_request_at(self.demands))
        if stage != "train":
            return
        for share in full.values():
            if share.overhead is not None:
                share.overhead.begin()
        self.table.clear()
        self._whole_gradient.clear()
        self.pairs.begin(step)

    def note_cost(self, own: float, common: float, wall: float | None) -> None:
        seconds, calls = self.fallback.take_cost()
        self._cost = own + seconds, calls

    def cost_of(self, number: int) -> tuple[float, int]:
        """The seconds and the calls of hooks in the step before that an owner counts as its own."""
        seconds, calls = self._cost
        part = self._owners.portion(number, self.demands)
        return seconds * part, round(calls * part)

    def _account_of(self, name: str) -> AbstractContextManager[Any]:
        """The account of the first owner that asks for an accumulator of a user, or for metrics."""
        share = self._charged.get(name)
        return nullcontext() if share is None or share.account is None else share.account

    def exchange(self, facts: int = 0) -> PendingState:
        """The table merged over ranks, perhaps still on its way to the CPU; read it before the next write. Collective.

        Args:
            facts: the checksum of the facts of the step.
        """
        stop = [share.failed for share in self.shares]
        return self.table.exchange(stop=stop, factor=[share.wanted_factor() for share in self.shares], facts=facts)

    def agree(self, merged: MergedState) -> None:
        """Do what ranks requested in an exchange. All ranks must call `agree` at the same step.

        Raises:
            StoppedError: an owner whose errors are raised has failed on another rank. Raised on all ranks, before anything else
                is exchanged.
        """
        for share, stop, factor in zip(self.shares, merged.stops, merged.factors, strict=True):
            share.agree(stop=stop, factor=factor, widens=self.stage == "train")
        self._note_failures()

    def end_step(self) -> None:
        self.absent.warn()

    def all_targets(self) -> Iterable[Target[Any]]:
        return (row.target for row in self.plan.rows if row.tensor not in WHOLE)

    def refreshed(self) -> None:
        self._reader.forget()

    left = refreshed

    def actions_of_turn(self, number: int, demands: Due) -> Iterator[Action]:
        """The actions of the rows that are read in the turn of an owner."""
        on_request = self.plan.on_request_at(demands)
        rows = [self.plan.rows[row] for row in self._owners.turn(number, demands)]
        for row in rows:
            if row.kind in MODULE_TENSORS:
                tensor, backward = gradient_of(row.kind)
                yield Action(
                    row.target.value,
                    tensor,
                    self.table.writer(row.index, self.fallback, [n for n, rows in on_request.items() if row.index in rows]),
                    row.path,
                    absent=partial(self.absent.note, f"watch: {row.tensor!r}", row.name) if row.path else None,
                    backward=backward,
                    in_graph=self._in_graph(row.index, on_request),
                )
        summed = {row.index for row in self.pairs.summed_at(demands)}
        for row in rows:
            if row.index in summed:
                yield Action(row.target.value, "grad", partial(self._add_micro_batch, row))

    def _in_graph(self, row: int, on_request: Mapping[str, Collection[int]]) -> RowInGraph | None:
        """The row for operations in compiled code; None if they do not serve for the table."""
        if not kernels.serves_in_graphs(self.table.state):
            return None
        table, fallback = self.table, self.fallback
        more = any(row in rows for rows in on_request.values())

        def address() -> int | None:
            return None if more or not fallback.direct or fallback.trail is not None else table.address(row)

        return RowInGraph(table.state.device, table.magnitudes, address)

    def read_before_step(self, number: int, optimizer: Optimizer, memo: PhaseMemo) -> None:
        """Read in the turn of an owner the tensors of parameters that exist before the step of their optimizer."""
        due = self._read("before_step", optimizer, memo.scale, number)
        self._read_whole_gradient(number, optimizer, memo.scale)
        if self._compares and due and self._reads:
            for each in due:
                if each.tensor == "grad":
                    self._compare(each, memo.scale)

    def final(self, optimizer: Optimizer, memo: PhaseMemo) -> None:
        self._read("final", optimizer, memo.scale)

    def before_update(self, optimizer: Optimizer, memo: PhaseMemo) -> None:
        if self._reads:
            with self.guard:
                self._reader.copy_parameters(optimizer, self.demands)

    def after_update(self, optimizer: Optimizer, memo: PhaseMemo) -> None:
        if memo.skipped or self.skips_capture():
            return
        self._read("after_update", optimizer)
        # The loss scaler calls a fused optimizer even after an overflow, which then leaves the parameters as they are. Withdraw
        # the rows if there was an overflow.
        if memo.scale is not None and memo.found_inf is not None:
            due = self._due_rows("after_update", optimizer)
            with self.guard:
                self.table.withdraw([row for each in due for row in each.offsets.rows], memo.found_inf)

    def rows_of_changes(self, parameters: Sequence[Tensor]) -> Sequence[int] | None:
        """The rows with the changes of exactly these parameters in the last update; None if not all were measured."""
        changes = self._reader.changes
        return changes.offsets.rows if changes is not None and are_same(changes.parameters, parameters) else None

    def skips_capture(self) -> bool:
        """Whether nothing is measured now because a CUDA graph is being captured. Warns the first time."""
        if not kernels.is_capturing(self._device):
            return False
        if not self._told_capture:
            self._told_capture = True
            warnings.warn(
                "nothing is measured while a CUDA graph is captured, and a replay of the graph calls no hooks: what runs in "
                "the graph has no values. Leave out the modules that are captured, or train without the graph to watch them",
                stacklevel=2,
            )
        return True

    @property
    def _reads(self) -> bool:
        """Whether the observer now reads parameters and their gradients."""
        return (self._sharded or not self.failed) and not self.skips_capture()

    def _due_rows(self, phase: str, optimizer: Optimizer, number: int | None = None) -> list[TensorRows]:
        rows = None if number is None else self._owners.turn(number, self.demands)
        return self._reader.due(phase, optimizer, self.demands, number, rows)

    def _add_micro_batch(self, row: Row, tensor: Tensor) -> None:
        if self.failed or self.skips_capture():
            return
        with self.guard_of(self._asking(row.index)):
            try:
                self.pairs.add(row, Measurement(tensor))
            except UnmeasurableError as error:
                self.fallback.warn_unmeasurable(row.index, error)

    def _compare(self, due: TensorRows, scale: Tensor | None) -> None:
        """Compare gradients with those of the previous step at which their owners compared them."""
        positions = self.pairs.note(due.offsets.rows, self.demands)
        if positions:
            self._compare_at(positions, due, scale)

    @torch.no_grad()
    def _compare_at(self, positions: Sequence[int], due: TensorRows, scale: Tensor | None) -> None:
        rows = due.offsets.rows
        gradients: dict[int, Tensor] = {}
        for position in positions:
            # If one row fails, this rank must still take part in the collective of the next row. Do not use `guard`, which
            # takes longer: there may be thousands of rows.
            try:
                gradient = comparable(due.parameters[position])
            except Exception as error:
                self.fail(error, self._asking(rows[position]))
            else:
                if gradient is not None:
                    gradients[rows[position]] = gradient
        with self.guard:
            self.pairs.compare(gradients, scale)

    def _read(
        self, phase: str, optimizer: Optimizer, scale: Tensor | None = None, number: int | None = None
    ) -> Sequence[TensorRows]:
        """Measure the tensors of parameters that exist in a phase, and set their rows. Returns the rows that are due."""
        if not self._reads:
            return ()
        due: Sequence[TensorRows] = ()
        with self.guard:
            due = self._due_rows(phase, optimizer, number)
            for row, measurement in self._reader.read(phase, optimizer, due, scale):
                self.fallback.put(row, measurement)
        return due

    def _read_whole_gradient(self, number: int, optimizer: Optimizer, scale: Tensor | None) -> None:
        """Measure the norm of all gradients of an optimizer, in the turn of the owner that asks for it."""
        row = self._whole_gradient.row
        if row is None or not self._reads or row not in self._owners.turn(number, self.demands):
            return
        if self._whole_gradient.is_due(self.shares[number].plan, self.due_shares[number]):
            with self.guard:
                moments = self._whole_gradient.read(optimizer, scale)
                if moments is not None:
                    self.table.put_moments(row, moments)

    def scaled_by(self, factor: Tensor | None) -> None:
        """Multiply gradients that were measured under an old loss scale by `factor`, the new scale over the old one."""
        if factor is not None and not self.skips_capture():
            self.table.rescale(self.plan.loss_scaled, factor)

    def guard_of(self, shares: Sequence[Share]) -> Guard:
        """As `guard`; an error concerns these shares."""
        return Guard(self.fail, shares)

    def fail(self, error: Exception, shares: Sequence[Share] | None = None) -> None:
        """Handle an error of this package: raise it, or let the owners whom it concerns stop.

        Args:
            error: the error. If it was raised by the code of a user, it concerns the owners that asked for it.
            shares: whom it concerns otherwise; all shares that are due by default.
        """
        concerned = self._due_now if shares is None else list(shares)
        name = blamed(error)
        if name is not None:
            concerned = [share for share in self.shares if name in share.part.own_names] or concerned
        concerned = [share for share in concerned if not share.failed]
        # Raise before any owner is told to stop, if one of them raises.
        for share in sorted(concerned, key=lambda each: each.on_error != "raise"):
            share.fail(error, alone=self.table.ranks == 1)
        self._note_failures()

    @property
    def _due_now(self) -> list[Share]:
        return [self.shares[number] for number in self.due_shares] or self.shares

    def _asking(self, row: int) -> list[Share]:
        """The shares that request a row in the current step."""
        return [self.shares[owner] for owner in self._owners.demanding(self.plan.rows[row], self.demands)]

    def fail_row(self, row: int, error: Exception) -> None:
        """Handle an error of measuring a row, which concerns the owners that request the row."""
        self.fail(error, self._asking(row) or None)

    def _note_failures(self) -> None:
        self.failed = all(share.failed for share in self.shares)
        if self.failed:
            self.fallback.direct = False
