"""The hook manager: owns every hook on one model, installs and removes hooks, and turns them on and off.

The life of a step: `begin_batch` asks each participant at the first batch of a step whether it acts, installs the hooks that
the acting participants need, and turns the switch on; `before_step` and `phase` run what participants do around the optimizer's
step; `end_batch` turns the switch off and removes the hooks, so that a copy of the model has none; `end_step` ends the step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_hooks.engine.participants.overhead import Account, Meter
from lightning_hooks.engine.participants.participant import Active, Participant
from lightning_hooks.engine.running.acting import Acting, defines
from lightning_hooks.engine.running.installed_hooks import InstalledHooks, InstallFinal
from lightning_hooks.engine.running.optimizer_phases import OptimizerPhases
from lightning_hooks.engine.running.pauses import Pauses
from lightning_hooks.engine.running.stage_step import TRAIN, StageStep
from lightning_hooks.engine.running.uncalled import Uncalled
from lightning_hooks.hooks import HookSwitch
from lightning_hooks.plan.refresh import Refresh


class HookManager:
    """Owns every hook on one model, and calls the participants in their order.

    Args:
        model: the root module.
        optimizers: returns the optimizers whose updates are watched; they may change during a fit.
        install_final: installs a wrapper that runs the phase `final`; called only if a participant acts in that phase.
        meter: the clock of overhead.
        warned_uncalled: the names of modules that an earlier warning has named as not called.

    Attributes:
        participants: the participants that may act, in order.
        stage: the stage of the batch that began last.
        scale: the loss scale of the last backward; None if there was no scaled backward.
        refresh: looks up targets again that were replaced in the model.
        uncalled: warns of modules that were not called.
        run_handles: the handles of hooks that stay until the hook manager is closed.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Callable[[], Sequence[Optimizer]] = tuple,
        *,
        install_final: InstallFinal | None = None,
        meter: Meter | None = None,
        warned_uncalled: set[str] | None = None,
    ) -> None:
        self.model = model
        self.switch = HookSwitch(model)
        self.meter = meter or Meter()
        self.scale: Tensor | None = None
        self.refresh = Refresh(model)
        self.uncalled = Uncalled(warned_uncalled)
        self.participants: list[Participant] = []
        self.stage = TRAIN
        self._installed = InstalledHooks(model, self.switch, optimizers, self.phase)
        self.run_handles = self._installed.run_handles
        self._install_final = install_final
        self._reads_final = False
        self._announced = False
        self._steps: defaultdict[str, StageStep] = defaultdict(StageStep)  # by stage
        # Kinds of steps alternate, so that those of the last steps are kept.
        self._acting_of = lru_cache(maxsize=32)(Acting)
        self._costed: list[Participant] = []  # the participants whom `note_cost` concerns
        self._phases = OptimizerPhases()
        self._pauses = Pauses()

    @property
    def step(self) -> int | None:
        """The number of the current training step; None between two steps."""
        return self._steps[TRAIN].number

    @property
    def idle(self) -> bool:
        """Whether a step of training is under way in which no participant acts."""
        step = self._steps[TRAIN]
        return step.number is not None and not step.acting.active

    @property
    def acting(self) -> Acting:
        """The participants that act in the step of the current stage, by what they do."""
        return self._steps[self.stage].acting

    @property
    def active(self) -> Active:
        """The participants that act in the step of the current stage, each with its key."""
        return self.acting.active

    @property
    def called(self) -> set[int]:
        """The ids of the hooked modules that were called in the step of the current stage."""
        return self._steps[self.stage].called

    def acts(self, participant: Participant) -> bool:
        """Whether a participant acts in the step of the current stage."""
        return participant in self._steps[self.stage].acting.members

    def join(self, *participants: Participant) -> None:
        """Add participants; hooks inside compiled code are installed now, all others when a step begins."""
        self._installed.discard()
        for participant in participants:
            self.participants = [*self.participants, participant]
            self._reads_final = self._reads_final or participant.reads_final
            participant.account = Account(self.meter)
            # Forget the loss scale of an earlier run of the participant.
            participant.loss_scale = None
            participant.joined(self.switch, self.run_handles)
        self._costed = [each for each in self.participants if defines(each, "note_cost")]
        self._installed.install_compiled(self.participants)

    def leave(self, participant: Participant) -> None:
        """Remove a participant, between batches; when the last one leaves, close the hook manager."""
        participant.left()
        self.participants = [each for each in self.participants if each is not participant]
        self._costed = [each for each in self._costed if each is not participant]
        self._acting_of.cache_clear()
        for step in self._steps.values():
            step.drop(participant)
        if not self.participants:
            self.close()
            return
        self.refresh.forget()
        self._installed.discard()

    def begin_batch(
        self,
        step: int,
        *,
        stage: str = TRAIN,
        reporting: bool = False,
        announced: bool = False,
    ) -> None:
        """Turn hooks on for a batch; at the first batch of a step ask who acts. May be called several times for a batch.

        Args:
            step: the number of the step; in other stages than `train`, of the batch.
            stage: `train`, `validate`, `test` or `predict`.
            reporting: whether transforms report although no monitor asks them to.
            announced: whether the training loop calls `backward_begins` before each backward of the loss in this batch.
        """
        if self._pauses.is_paused:
            options: dict[str, Any] = {"stage": stage, "reporting": reporting, "announced": announced}
            self._pauses.begin_batch(partial(self.begin_batch, step, **options))
            return
        self.stage = stage
        self._announced = announced
        self.switch.awaits_loss = announced and stage == TRAIN and not self.switch.in_loss
        current = self._steps[stage]
        begins = current.number != step
        if begins:
            self._ask_who_acts(step, stage)
        # If no participant acts, return without timing the call. If few steps are watched, most steps end here.
        if not current.acting.active:
            if self._installed.active is not None:
                self._installed.remove()
            self._installed.compiled_unchecked = True
            return
        with self._common_account:
            if begins:
                current.tell_begin(stage, self.participants, reporting)
            for participant in current.acting.does["begin_batch"]:
                participant.begin_batch()
            self._turn_on()

    def end_batch(self) -> None:
        """Turn hooks off and remove them; hooks inside compiled code stay. Does nothing between batches."""
        self._pauses.end_batch()
        self.switch.end_backward(waits=False)
        if self._installed.active is None and not self.switch.is_on:
            return
        self.switch.turn_off()
        with self._common_account:
            self._installed.remove()
        self._installed.refuse_traced()

    def end_step(self, stage: str = TRAIN) -> None:
        """End the step of a stage. Installed hooks stay for the next step, turned off."""
        self.switch.turn_off()
        self._pauses.end_batch()
        step = self._steps[stage]
        acting = step.end()
        if stage == TRAIN:
            self._phases.forget()
        if not acting.active:
            return
        with self._common_account:
            if stage == TRAIN:
                self.refresh.note(acting.hooked, step.called)
            self._installed.end_step()
            for participant in acting.does["end_step"]:
                participant.end_step()
        self._installed.refuse_traced()
        # A module that was not called may have been replaced or compiled within the batch: look up all targets at the next
        # step.
        if self.uncalled.warn(acting.hooked, step.called, left_out=self.switch.left_out):
            self.refresh.requested = True

    def refresh_in_batch(self) -> None:
        """Look targets up again within a batch, before an optimizer steps, and hook the new ones."""
        with self._common_account:
            self._refresh()
            if self.switch.is_on:
                self._turn_on()

    def interrupt(self) -> None:
        """End the batch, and the time of the training step, because something else begins, for example a validation."""
        self.end_batch()
        self.meter.interrupt()

    def pause(self, by: object) -> None:
        """Remove all hooks until every caller of `pause` has called `resume`."""
        self._pauses.begin(by, self._turn_on if self.switch.is_on else None)
        self.switch.turn_off()
        self._installed.remove()
        self._installed.remove_compiled()

    def resume(self, by: object) -> None:
        """End a pause. When the last pause ends, install the hooks again if a batch is still under way."""
        if not self._pauses.end(by):
            return
        # The user may have changed the model during the pause, for example by quantization.
        self._refresh_targets()
        self._installed.install_compiled(self.participants)
        self._pauses.resume_batch()

    def close(self) -> None:
        """Remove everything; a second call does nothing."""
        self.switch.turn_off()
        self._pauses.end_batch()
        self._installed.discard()
        self._installed.remove_compiled()
        self.run_handles.close()
        participants, self.participants = self.participants, []
        for participant in participants:
            participant.left()
        self._costed = []
        self._acting_of.cache_clear()
        self._phases.forget()
        self.refresh.forget()
        self.uncalled.forget()
        self._steps.clear()

    def before_step(self, participants: Iterable[Participant], optimizer: Optimizer) -> None:
        """Run `before_step` of those of some participants that act in this step.

        Called for those of each callback separately, because callbacks of other packages may stand between ours.
        """
        if self.switch.is_on:
            self._phases.before_step(self.acting, participants, optimizer)

    def phase(self, name: str, optimizer: Optimizer, has_closure: bool = False) -> None:
        """Run `final`, `before_update` or `after_update` of every participant that acts in this step.

        If the optimizer's step has a closure, in which Lightning runs the training step, `before_update` is called inside the
        closure, right after `before_step`.
        """
        if self.switch.is_on:
            self._phases.run(self.acting, name, optimizer, has_closure)

    def backward_begins(self) -> None:
        """Called by the training loop before the backward of the loss."""
        self.switch.begin_backward()
        self._installed.note_backward(begins=True)

    def backward_ends(self) -> None:
        self._installed.note_backward(begins=False)
        self.switch.end_backward(waits=self._announced and self.stage == TRAIN)

    def scaled_by(self, scale: Tensor) -> None:
        """Note the loss scale of the backward that begins, and pass the participants its ratio to the previous scale."""
        # Compute the ratio only if an optimizer has stepped in this step, because the scale changes only then.
        factor = scale / self.scale if self._phases.has_begun and self.scale is not None else None
        self.scale = scale.detach().clone()
        for participant, _ in self.active:
            participant.loss_scale = self.scale
            participant.scaled_by(factor)

    def take_reports(self) -> dict[str, float]:
        """The reports of all participants in this step, tag to value. Call it once per step."""
        out: dict[str, float] = {}
        for participant in self.acting.does["take_reports"]:
            for tag, value in participant.take_reports().items():
                # Participants share a tag only for counts, so add the values.
                out[tag] = out.get(tag, 0.0) + value
        return out

    @property
    def _common_account(self) -> Account:
        return self.meter.common if self.stage == TRAIN else self.meter.aside

    def _ask_who_acts(self, number: int, stage: str) -> None:
        if stage == TRAIN:
            self._note_costs()
            self._phases.forget()
        if self.refresh.requested:
            with self._common_account:
                self._refresh()
        self._steps[stage].begin(number, stage, self.participants, self._acting_of)

    def _note_costs(self) -> None:
        wall, common = self.meter.next_step(), self.meter.common.take()
        for participant in self._costed:
            participant.note_cost(participant.account.take(), common, wall)

    def _refresh(self) -> None:
        self._refresh_targets()
        self._installed.check_compiled(self.participants)

    def _refresh_targets(self) -> None:
        replaced = self.refresh.run(target for participant in self.participants for target in participant.all_targets())
        if replaced:
            for participant in self.participants:
                participant.refreshed()
            self.refresh.forget()
            self._installed.discard()

    def _turn_on(self) -> None:
        """Install the hooks of the current step and turn them on; do nothing if no participant acts."""
        step = self._steps[self.stage]
        if step.acting.active:
            install_final = self._install_final if self._reads_final else None
            self._installed.install(step.acting, step.called, self.participants, install_final)
            self._installed.turn_on(self._announced and self.stage == TRAIN)
