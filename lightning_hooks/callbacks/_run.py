"""The run of a Trainer: what callbacks of this package share during a run, and which callback acts for all of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from weakref import ReferenceType, WeakMethod, ref

from typing_extensions import override

from lightning_hooks.callbacks._checks import Earlier, refuse_common_folder
from lightning_hooks.callbacks._default_folder import default_logdir, folder_of_logger
from lightning_hooks.callbacks._disk import budget_of
from lightning_hooks.callbacks._guard import HooksGuard, WrappedHook
from lightning_hooks.callbacks._ours import our_callbacks
from lightning_hooks.callbacks._step_facts import TrainerFacts
from lightning_hooks.callbacks._trainer import (
    deferred,
    in_fit,
    is_running,
    lightning_logger,
    optimizers_of,
    remembered,
)
from lightning_hooks.engine.participants.participant import Participant
from lightning_hooks.engine.running.run import Run, runs_on
from lightning_hooks.engine.watching.producer import Producer
from lightning_hooks.hooks import for_each
from lightning_hooks.records.disk_budget import DiskBudget
from lightning_hooks.tensorboard.own_board import OwnBoard, checked_logdir

if TYPE_CHECKING:
    from lightning_hooks.callbacks._base import HooksCallback
    from lightning_hooks.callbacks._lightning import LightningModule, Trainer


class LightningRun(Run):
    """One fit of a Trainer, or one run of another stage outside a fit.

    The first callback in the list that takes part begins the run, and puts a `HooksGuard` before all callbacks, which ends the
    run.

    Args:
        trainer: held by a weak reference.
        pl_module: the model of the run.

    Attributes:
        is_fit: whether the run is a fit, which may include validations.
        earlier: what the callbacks that have joined so far do.
        facts: of the steps.
        failed_loggers: the loggers that raised when a monitor wrote to them, with their errors.
        producers: by stage, what measures and publishes for all callbacks.
        has_ended_step: whether the batch that ended last was the last one of its step.
        ends_batch: what the driver does after a batch of training.
    """

    def __init__(self, trainer: Trainer, pl_module: LightningModule) -> None:
        kept = remembered(trainer)
        final = WrappedHook(pl_module).install
        super().__init__(pl_module, deferred(trainer, optimizers_of, ()), final, kept.uncalled)
        self._trainer = ref(trainer)
        self._kept = kept
        self.is_fit = in_fit(trainer)
        self.earlier = Earlier()
        self.facts = TrainerFacts(self._trainer, self.hook_manager)
        self.failed_loggers: list[tuple[Any, Exception]] = []
        self.producers: dict[str, Producer] = {}
        self.has_ended_step = False
        self.ends_batch: Callable[[LightningRun, Trainer], None] = _only_remove
        self._is_in_batch = False
        self._open_stages: set[str] = set()
        self._members: list[_Member] = []
        self._present: list[_Member] = []  # whose callbacks are in the list of the Trainer
        self._compared: Sequence[object] = ()  # that list when `_present` was computed; a tuple if it must be computed again
        self._boards: dict[Path, OwnBoard] = {}
        self._capture_folders: set[Path] = set()

    @property
    @override
    def model(self) -> LightningModule:
        return cast("LightningModule", super().model)

    @property
    def trainer(self) -> Trainer | None:
        """The Trainer; None if it was garbage-collected."""
        return self._trainer()

    def take_part(
        self, callback: HooksCallback, participants: list[Participant], leave: Callable[[BaseException | None], None]
    ) -> None:
        """Note a callback that takes part; the first one begins the run.

        Args:
            callback: held by a weak reference.
            participants: the list of the callback's participants, which the callback fills later.
            leave: a method of the callback that makes it leave the run. A second call does nothing.
        """
        self._members.append(_Member(ref(callback), participants, WeakMethod(leave)))
        self._compared = ()
        if not self.is_live:
            self._begin()

    def has(self, callback: HooksCallback) -> bool:
        """Whether a callback takes part."""
        return any(member.callback() is callback for member in self._members)

    def _begin(self) -> None:
        """Pause the hooks of outer runs on the same model, and install the guard."""
        trainer = self.trainer
        if trainer is None:
            return
        handles = self.hook_manager.run_handles
        for outer in runs_on(self.model):
            if isinstance(outer, LightningRun) and outer.trainer is not trainer and is_running(outer.trainer):
                handles.keep(_Pause(outer)).install()
        # Keep the guard before installing it: if Ctrl-C arrives in between, closing the run still removes it.
        handles.keep(HooksGuard(trainer, self)).install()

    def end(self, error: BaseException | None = None) -> None:
        """Make every callback leave, also callbacks that were removed from the Trainer, which Lightning no longer calls.

        Removed callbacks leave last: one of them may count the steps that the loss scaler skips, and the others save the count.
        """

        def leave(member: _Member) -> None:
            method = member.leave()
            if method is not None:
                method(error)

        self.note_removed()
        for_each(leave, [*self._present, *self._removed_members()])

    @override
    def leave(self, participants: Iterable[Participant]) -> None:
        """Remove a callback and its participants; when the last callback has left, the run ends."""
        self._members = [member for member in self._members if member.participants is not participants]
        self._compared = ()
        super().leave(participants)
        if not self._members:
            self.close()

    def removed(self) -> list[HooksCallback]:
        """The callbacks that take part although they were removed from the list of the Trainer."""
        self.note_removed()
        return [callback for member in self._removed_members() if (callback := member.callback()) is not None]

    def begin_batch(self, step: int, *, stage: str = "train", reporting: bool = False, announced: bool = False) -> None:
        """Call `HookManager.begin_batch`; participants of callbacks that were removed from the list do not act."""
        self.note_removed()
        self._is_in_batch = self._is_in_batch or stage == "train"
        self.hook_manager.begin_batch(step, stage=stage, reporting=reporting, announced=announced)

    def end_batch(self, trainer: Trainer) -> None:
        """Remove the hooks after a batch of training, and end the step if it is over; a second call does nothing."""
        self.ends_batch(self, trainer)

    def take_batch(self) -> bool:
        """Whether a batch of training is under way; it is over then."""
        was_in_batch, self._is_in_batch = self._is_in_batch, False
        if was_in_batch:
            self.has_ended_step = False
        return was_in_batch

    def begin_stage(self, stage: str) -> None:
        """Note that the run of a stage other than `train` begins."""
        self._open_stages.add(stage)

    def take_stage(self, stage: str) -> bool:
        """Whether the run of a stage other than `train` is under way; it is over then."""
        was_open = stage in self._open_stages
        self._open_stages.discard(stage)
        return was_open

    @property
    def is_pending(self) -> bool:
        """Whether something must be done at the end of the next step even if no participant acts in that step."""
        trained = self.producers.get("train")
        return (trained is not None and trained.is_pending) or any(each._job.has_requests for each in self._callbacks())

    def tell_ended(self, trainer: Trainer, step: int) -> None:
        """Tell the callbacks that a training step has ended; the hooks are already removed."""
        self.has_ended_step = True
        for callback in self._callbacks():
            callback._job.end_step(trainer, step)

    def _callbacks(self) -> list[HooksCallback]:
        """The callbacks that take part, in order."""
        return [callback for member in self._members if (callback := member.callback()) is not None]

    def note_removed(self) -> None:
        """Let the participants of callbacks that were removed from the list of the Trainer act no more; others act again."""
        # The list is read without a call, because this is asked several times in each step.
        trainer: Any = self._trainer()
        listed = [] if trainer is None else trainer.callbacks
        if self._compared != listed:
            self._compared, ids = [*listed], set(map(id, listed))
            self._present = [member for member in self._members if id(member.callback()) in ids]
            for member in self._members:
                for participant in member.participants:
                    participant.is_absent = member not in self._present

    def _removed_members(self) -> list[_Member]:
        return [member for member in self._members if member not in self._present]

    def is_led_by(self, callback: HooksCallback) -> bool:
        """Whether a callback comes first of those that are in the list of the Trainer: it does the work that is done once."""
        self.note_removed()
        return bool(self._present) and self._present[0].callback() is callback

    def ends_with(self, callback: HooksCallback) -> bool:
        """Whether a callback comes last of those that are in the list of the Trainer."""
        self.note_removed()
        return bool(self._present) and self._present[-1].callback() is callback

    def logdir_of(self, callback: HooksCallback) -> str | os.PathLike[str] | None:
        """The folder for event files of this package: that of the callback, or else of the first callback that has one.

        Without one, where the Trainer has loggers and none is a TensorBoard, it is the folder of a logger or a default one. It
        is the same on every rank.
        """
        trainer = self.trainer
        if callback.logdir is not None or not callback.loggers or trainer is None:
            return callback.logdir
        given = next((each.logdir for each in our_callbacks(trainer) if each.logdir is not None), None)
        return default_logdir(trainer) if given is None and "all" in callback.loggers else given

    def own_board(self, logdir: str | os.PathLike[str]) -> OwnBoard:
        """The TensorBoard of this package in a folder, shared by all callbacks and closed when the run ends.

        Raises:
            RuleError: the folder cannot be written to. Checked now, because the first write comes much later.
        """
        folder, trainer = checked_logdir(logdir), self.trainer
        assert trainer is not None
        if folder not in self._boards:
            if folder == folder_of_logger(trainer):
                self._kept.boards[folder] = folder  # It belongs to this run alone, so that no folder in it is needed.
            board = OwnBoard(folder, self._kept.boards, lightning_logger(trainer))
            self._boards[folder] = self.hook_manager.run_handles.keep(board)
        return self._boards[folder]

    @cached_property
    def disk(self) -> DiskBudget:
        """The budget on disk of all monitors of the run.

        Raises:
            RuleError: two callbacks give different ones.
        """
        trainer = self.trainer
        if trainer is None:
            return DiskBudget(None)
        return budget_of(our_callbacks(trainer), lightning_logger(trainer).info)

    def folder_of_board(self) -> Path | None:
        """The folder of the first event file of this package; None without one, as on ranks other than 0."""
        return next((board.folder for board in self._boards.values()), None)

    def begin_capture(self, folder: Path) -> None:
        """Note the folder of a capture.

        Raises:
            RuleError: another capture writes into it.
        """
        # Check again when the run begins: another capture may name the default folder of this run, which is not known before.
        refuse_common_folder(folder, self._capture_folders)
        self._capture_folders.add(folder)


def _only_remove(run: LightningRun, trainer: Trainer) -> None:
    """What happens after a batch in a run that no driver has begun: the hooks are removed."""
    run.hook_manager.end_batch()


class _Member(NamedTuple):
    """A callback that takes part in a run."""

    callback: ReferenceType[HooksCallback]
    participants: list[Participant]
    leave: WeakMethod[Callable[[BaseException | None], None]]


class _Pause:
    """Pauses the hooks of a run while another run, which began inside it, uses the same model."""

    def __init__(self, outer: Run) -> None:
        self._outer: Run | None = outer

    def install(self) -> None:
        if self._outer is not None:
            self._outer.hook_manager.pause(self)

    def remove(self) -> None:
        """Resume the outer run. A second call, or a call after the outer run has ended, does nothing."""
        outer, self._outer = self._outer, None
        if outer is not None and outer.is_live:
            outer.meter.interrupt()
            outer.hook_manager.resume(self)


def run_of(trainer: Trainer, pl_module: LightningModule) -> LightningRun:
    """The run in which callbacks of this Trainer take part, or a new run, which begins when a callback takes part."""
    for run in runs_on(pl_module):
        if not isinstance(run, LightningRun) or run.model is not pl_module:
            continue
        if run.trainer is trainer and any(map(run.has, our_callbacks(trainer))):
            return run
        # Remove the hooks of a fit that crashed before its callbacks could do so. They are not garbage-collected with its
        # Trainer, because Lightning's signal handlers still refer to it.
        if run.trainer is trainer or not is_running(run.trainer):
            run.close()
    return LightningRun(trainer, pl_module)
