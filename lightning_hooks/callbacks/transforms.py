"""`GradientTransforms`: gradients changed by rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from weakref import ref

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from typing_extensions import override

from lightning_hooks.callbacks._base import HooksCallback, is_log_step, loss_scale
from lightning_hooks.callbacks._loggers import Outlet
from lightning_hooks.engine.changer import Changer, resolve_links
from lightning_hooks.engine.dispatcher import Dispatcher
from lightning_hooks.engine.observer import Observer
from lightning_hooks.engine.participant import Participant
from lightning_hooks.engine.report import Match, links_report
from lightning_hooks.errors import RuleError
from lightning_hooks.reading import as_rules
from lightning_hooks.rules import Apply
from lightning_hooks.stats.record import StepRecord


class GradientTransforms(HooksCallback):
    """Change gradients by rules, in the order written.

    A rule on `params` acts on the gradient of the optimizer step (stage `step`: accumulated, unscaled, averaged over ranks,
    before Lightning's own clipping) or on each gradient as backward makes it (stage `backward`). A rule on `modules` acts on
    the gradient that flows through the module.

    Every link reports gradient norm before and after, the share of reported steps on which it changed anything, and the
    cosine between before and after, into the event of a `StatsMonitor`, or every `log_every_n_steps` where there is none.

    Args:
        apply: rules, or mappings that hold a rule's fields.

    Raises:
        RuleError: a value that cannot be meant; at fit start also a rule that matches nothing.
        UnsupportedError: at fit start, what could not be right under a loss scaler.

    Example:
        >>> from lightning_hooks import ClipByGlobalNorm
        >>> GradientTransforms(apply=[Apply(ClipByGlobalNorm(max_norm=1.0), params="*")]).apply[0].params
        '*'
    """

    def __init__(self, apply: Sequence[Mapping[str, Any] | Apply]) -> None:
        super().__init__()
        self.apply = as_rules(Apply, apply, "apply")
        if not self.apply:
            raise RuleError("apply is an empty list; give at least one rule")
        self._saved: dict[str, Any] | None = None
        self._last: dict[str, Any] | None = None
        self._outlet: Outlet | None = None

    def __repr__(self) -> str:
        """The rules."""
        return f"GradientTransforms(apply={self.apply!r})"

    def __getstate__(self) -> dict[str, Any]:
        """A copy or a pickle is not attached to anything."""
        return {**super().__getstate__(), "_outlet": None}

    @property
    def state_key(self) -> str:
        """Tells several of these callbacks apart in a checkpoint: by what they act on, not by every number."""
        rules = [f"{'+'.join(type(t).__name__ for t in r.transform)}@{r.stage}:{r.params or r.modules}" for r in self.apply]
        return self._generate_state_key(apply=rules)

    @property
    def changer(self) -> Changer | None:
        """The transforms at work, during a fit."""
        return self._participant if isinstance(self._participant, Changer) else None

    def match(self, model: LightningModule) -> Match:
        """What the rules match in a model, without training.

        Args:
            model: the root.

        Raises:
            RuleError: where a fit would.
        """
        return Match(links_report(resolve_links(model, self.apply)))

    @override
    def _build(self, trainer: Trainer, pl_module: LightningModule, dispatcher: Dispatcher) -> Participant:
        taken = sum(len(p.links) for p in dispatcher.participants if isinstance(p, Changer))
        seed = int(trainer.strategy.broadcast(torch.initial_seed()))  # replicas must draw the same numbers
        links = resolve_links(pl_module, self.apply, seed, start=taken)
        known = ref(trainer)

        def scale() -> Tensor | None:
            alive = known()
            return None if alive is None else loss_scale(alive)

        changer = Changer(links, scale=scale)
        if getattr(trainer.precision_plugin, "scaler", None) is not None:
            changer.refuse_under_scaler(trainer.optimizers)
        if self._saved is not None:
            changer.load_state_dict(self._saved)
            self._saved = None
        self._outlet = Outlet(trainer)
        return changer

    @override
    def _finish(self, trainer: Trainer, step: int) -> None:
        dispatcher = self._dispatcher
        if dispatcher is None or self._outlet is None or not is_log_step(trainer, step):
            return
        if any(isinstance(participant, Observer) for participant in dispatcher.participants):
            return  # it writes the reports into its own event
        reports = dispatcher.take_reports()
        if reports:
            self._outlet.write(StepRecord(step=step, summaries=reports))

    @override
    def _leave(self) -> None:
        if self.changer is not None:
            self._last = self.changer.state_dict()  # for a checkpoint that is saved after the fit
        super()._leave()

    @override
    def state_dict(self) -> dict[str, Any]:
        """What the transforms keep from step to step, with their random generators."""
        if self.changer is not None:
            return self.changer.state_dict()
        return self._saved or self._last or {}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where a checkpoint stopped; the state may arrive before or after the fit starts."""
        if not state_dict:
            return
        if self.changer is not None:
            self.changer.load_state_dict(state_dict)
        else:
            self._saved = state_dict
