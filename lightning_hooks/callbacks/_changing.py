"""Changing: the job of the callbacks with `Apply` rules: resolves them, reports what transforms did, and saves their state."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from time import time
from typing import TYPE_CHECKING, Any, Self, cast

import torch
from torch import nn
from typing_extensions import override

from lightning_hooks.callbacks._checks import Earlier, Setting, refuse_for_strategy, refuse_setting
from lightning_hooks.callbacks._chosen_loggers import logger_writer
from lightning_hooks.callbacks._job import Job
from lightning_hooks.callbacks._loggers import LoggerWriter
from lightning_hooks.callbacks._loop_writer import board_writer
from lightning_hooks.callbacks._trainer import deferred, is_alone, is_log_step, is_under_way, loss_scale
from lightning_hooks.engine.assembly import Contribution
from lightning_hooks.engine.changing.bound import BoundTransform
from lightning_hooks.engine.changing.checks import refuse_unsupported
from lightning_hooks.engine.changing.participant import TransformParticipant
from lightning_hooks.engine.changing.resolve import resolve_applies
from lightning_hooks.engine.inspecting.match_report import MatchLine, transforms_report
from lightning_hooks.engine.plain_loop.changing import changing_tensors
from lightning_hooks.engine.plain_loop.part import LoopPart
from lightning_hooks.engine.plain_loop.run import LoopRun
from lightning_hooks.records.consumer import Publisher
from lightning_hooks.records.step_view import StepView
from lightning_hooks.tensorboard.own_board import OwnBoard

if TYPE_CHECKING:
    from lightning_hooks.callbacks._lightning import Trainer
    from lightning_hooks.callbacks._run import LightningRun
    from lightning_hooks.callbacks.transforms import ActivationTransforms, GradientTransforms


class Changing(Job["GradientTransforms | ActivationTransforms", list[BoundTransform]]):
    """The job of a callback with `Apply` rules.

    Args:
        owner: the callback.
        default_tensor: the tensor that a rule on modules changes if it names none.

    Attributes:
        participant: the transforms in use during a run; None outside a run.
    """

    def __init__(self, owner: GradientTransforms | ActivationTransforms, default_tensor: str) -> None:
        super().__init__(owner)
        self.participant: TransformParticipant | None = None
        self._default = default_tensor
        self._writer: LoggerWriter | None = None  # writes what transforms report, during a run

    @override
    def for_copy(self) -> Self:
        copied = super().for_copy()
        copied.participant = copied._writer = None
        return copied

    @property
    @override
    def rules(self) -> str:
        return ", ".join(f"apply[{i}]" for i in range(len(self.owner.apply)))

    @property
    @override
    def stages(self) -> Collection[str]:
        return {stage for rule in self.owner.apply for stage in rule.stages or ("train",)}

    @override
    def refuse_setting(self, setting: Setting) -> None:
        # All processes must start a run, because transforms agree on a seed there. A validation within a fit starts none, so
        # one process may skip it.
        refuse_setting(setting, () if setting.function == "fit" else self.stages)
        about = [(f"{self.label}apply[{i}]", rule, (rule.acts_on(self._default),)) for i, rule in enumerate(self.owner.apply)]
        refuse_for_strategy(setting, about)

    @override
    def resolve(self, model: nn.Module, trainer: Trainer | None = None, earlier: Earlier | None = None) -> list[BoundTransform]:
        seed = 0
        if trainer is not None and is_under_way(trainer):
            # All ranks must draw the same random numbers, so they use the seed of the first rank.
            seed = int(trainer.strategy.broadcast(torch.initial_seed()))
        start = 0 if earlier is None else len(earlier.transforms)
        return resolve_applies(model, self.owner.apply, seed, start=start, default=self._default, where=self.label)

    @override
    def check(self, resolved: list[BoundTransform], setting: Setting, earlier: Earlier) -> Earlier:
        if not any(bound.targets for bound in resolved):
            return earlier
        refuse_unsupported(resolved, setting.optimizers, scaled=setting.is_scaled)
        return earlier._replace(transforms=(*earlier.transforms, *resolved))

    @override
    def lines(self, resolved: list[BoundTransform]) -> list[MatchLine]:
        return transforms_report(resolved)

    @override
    def contribute(self, trainer: Trainer, run: LightningRun, resolved: list[BoundTransform]) -> Contribution | None:
        if not any(bound.targets for bound in resolved):
            return None
        scale = deferred(trainer, loss_scale, None)
        participant = TransformParticipant(resolved, scale=scale, rank=trainer.global_rank, alone=is_alone(trainer))
        self.run, self.participant = run, participant
        with self.starting_again():
            self.load_state(self.owner._saving.take())
        self._writer = logger_writer(self.owner, trainer, run)
        self.publisher = Publisher([self._writer])
        return Contribution(type(self.owner).__name__, self.label, participants=[participant])

    @override
    def in_loop(self, run: LoopRun) -> LoopPart:
        given = changing_tensors(run, self.owner.apply, self._default, type(self.owner).__name__, self.label)
        return ChangingPart(self, given, run.board_of(self.owner))

    @override
    def end_step(self, trainer: Trainer, step: int) -> None:
        run, transforms = self.run, self.participant
        if run is None or transforms is None or not run.hook_manager.acts(transforms) or not is_log_step(trainer, step):
            return
        # If a monitor takes part in the run, it writes what transforms report into its own event.
        if any(participant.reports for participant in run.participants):
            return
        # Call `take_reports` on every rank, also on ranks that write nothing: it may be a collective.
        reports = run.hook_manager.take_reports()
        if not reports or self.publisher is None:
            return
        try:
            lost = [] if self._writer is None else self._writer.skip_failed(run.failed_loggers)
            if lost and self._writer is not None and not self._writer.loggers:
                raise lost[0]
            self.publisher.publish(StepView(step, wall_time=time(), summaries=reports))
        except Exception as error:
            if not any(share.stopped for producer in run.producers.values() for share in producer.observer.shares):
                raise
            self.publisher = None
            warnings.warn(
                f"{type(self.owner).__name__} stopped reporting after {type(error).__name__}: {error}; training continues",
                stacklevel=2,
            )

    @override
    def state(self) -> dict[str, Any]:
        return {} if self.participant is None else self.participant.state_dict()

    @override
    def load_state(self, state: dict[str, Any]) -> None:
        if self.participant is not None and state:
            self.participant.load_state_dict(state)

    @override
    def close(self, error: BaseException | None) -> None:
        self.participant = self._writer = None
        super().close(error)


class ChangingPart(LoopPart):
    """What a callback with `Apply` rules does in a block of `instrument`.

    Args:
        job: of the callback.
        contribution: the transforms; None if no rule matches anything.
        board: the event file for what transforms report; None for none.
    """

    def __init__(self, job: Changing, contribution: Contribution | None, board: OwnBoard | None) -> None:
        super().__init__(contribution)
        self._job = job
        if contribution is not None:
            (job.participant,) = cast("Sequence[TransformParticipant]", contribution.participants)
            self.writer = None if board is None else board_writer(board, job.owner.prefix)

    @override
    def close(self, error: BaseException | None) -> None:
        self._job.participant = self.contribution = None
