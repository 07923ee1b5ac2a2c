"""What the two callbacks that apply transforms have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import time
from typing import Any, ClassVar

import torch
from lightning.pytorch import LightningModule, Trainer
from typing_extensions import override

from lightning_hooks.callbacks._base import HooksCallback, our_callbacks
from lightning_hooks.callbacks._loggers import LoggerWriter
from lightning_hooks.callbacks._strategies import refuse_unsupported
from lightning_hooks.callbacks._trainer import is_log_step
from lightning_hooks.engine.change.bound import BoundTransform
from lightning_hooks.engine.change.gradients import GradientChanger
from lightning_hooks.engine.change.resolve import resolve_applies
from lightning_hooks.engine.hook_manager import HookManager
from lightning_hooks.engine.monitor.observer import Observer
from lightning_hooks.engine.participant import Participant
from lightning_hooks.engine.plan.match_report import Match, links_report
from lightning_hooks.errors import RuleError
from lightning_hooks.records.consumer import Publisher
from lightning_hooks.records.step_view import StepView
from lightning_hooks.rules import Apply
from lightning_hooks.rules.reading import as_rules


class AppliesRules(HooksCallback):
    """Base of the callbacks that change something by `Apply` rules: their reports, their state, their checkpoints.

    Args:
        apply: rules, or mappings that hold a rule's fields.

    Raises:
        RuleError: an invalid value.
    """

    default_tensor: ClassVar[str]
    """What a rule on modules changes that does not say."""

    def __init__(self, apply: Sequence[Mapping[str, Any] | Apply]) -> None:
        super().__init__()
        self.apply = as_rules(Apply, apply, "apply")
        if not self.apply:
            raise RuleError("apply is an empty list; give at least one rule")
        for i, rule in enumerate(self.apply):
            self._refuse(rule, f"apply[{i}]")
        self._saved: dict[str, Any] | None = None
        self._last: dict[str, Any] | None = None
        self._publisher: Publisher | None = None

    def _refuse(self, rule: Apply, where: str) -> None:
        """Refuse a rule that is for another callback."""

    def _changer(self, links: list[BoundTransform], trainer: Trainer) -> GradientChanger:
        """The participant that runs the links."""
        raise NotImplementedError

    def __repr__(self) -> str:
        """The rules."""
        return f"{type(self).__name__}(apply={self.apply!r})"

    def __getstate__(self) -> dict[str, Any]:
        """A copy or a pickle is not attached to anything."""
        return {**super().__getstate__(), "_publisher": None}

    @property
    def changer(self) -> GradientChanger | None:
        """The transforms at work, during a run."""
        return next((p for p in self._participants if isinstance(p, GradientChanger)), None)

    def match(self, model: LightningModule) -> Match:
        """The dry run: what the rules match in a model.

        Args:
            model: the root.

        Raises:
            RuleError: where a fit would.
        """
        return Match(links_report(self.links(model)))

    def links(self, model: LightningModule, seed: int = 0, start: int = 0) -> list[BoundTransform]:
        """The rules resolved in a model: each transform with its targets.

        Args:
            model: the root.
            seed: of the random transforms.
            start: index of the first.
        """
        return resolve_applies(model, self.apply, seed, start=start, default=self.default_tensor)

    @override
    def _build(self, trainer: Trainer, pl_module: LightningModule, hook_manager: HookManager) -> Sequence[Participant]:
        about = [(f"apply[{i}]", rule, (rule.acts_on(self.default_tensor),)) for i, rule in enumerate(self.apply)]
        refuse_unsupported(trainer, about)
        taken = sum(len(p.transforms) for p in hook_manager.participants if isinstance(p, GradientChanger))
        seed = int(trainer.strategy.broadcast(torch.initial_seed()))  # replicas must draw the same numbers
        links = self.links(pl_module, seed, taken)
        if not any(link.targets for link in links):
            return []
        changer = self._changer(links, trainer)
        if self._saved is not None:
            changer.load_state_dict(self._saved)
            self._saved = None
        self._publisher = Publisher([LoggerWriter(trainer)])
        return [changer]

    @property
    @override
    def _rules(self) -> str:
        return ", ".join(f"apply[{i}]" for i in range(len(self.apply)))

    @override
    def _finish(self, trainer: Trainer, step: int) -> None:
        hook_manager = self._hook_manager
        if hook_manager is None or self._publisher is None or not is_log_step(trainer, step):
            return
        if any(isinstance(participant, Observer) and participant.stage == "train" for participant in hook_manager.participants):
            return  # it writes the reports into its own event
        reports = hook_manager.take_reports()
        if reports:
            self._publisher.publish(StepView(step, wall_time=time(), summaries=reports))

    @override
    def _leave(self) -> None:
        if self.changer is not None:
            self._last = self.changer.state_dict()  # for a checkpoint that is saved after the fit
        super()._leave()

    @override
    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Called for a checkpoint: save what the transforms keep from step to step, with their random generators.

        Not through `state_dict`: Lightning finds it again by a key, and with one that tells callbacks apart by their rules a
        changed rule would lose the state of all others.
        """
        super().on_save_checkpoint(trainer, pl_module, checkpoint)
        state = self.changer.state_dict() if self.changer is not None else self._saved or self._last
        if state:
            checkpoint.setdefault(self._saved_as, {})[self._saved_at(trainer)] = state

    @override
    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Called with a checkpoint, before or after the fit starts: go on where it stopped."""
        super().on_load_checkpoint(trainer, pl_module, checkpoint)
        state = checkpoint.get(self._saved_as, {}).get(self._saved_at(trainer))
        if state is None:
            return
        if self.changer is not None:
            self.changer.load_state_dict(state)
        else:
            self._saved = state

    @property
    def _saved_as(self) -> str:
        return f"lightning_hooks.{type(self).__name__}"

    def _saved_at(self, trainer: Trainer) -> str:
        return str([callback for callback in our_callbacks(trainer) if type(callback) is type(self)].index(self))
