"""`GradientTransforms` and `ActivationTransforms`: change tensors by `Apply` rules."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from time import time
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from typing_extensions import override

from lightning_hooks.callbacks._base import HooksCallback
from lightning_hooks.callbacks._checks import Earlier, Setting, refuse_for_strategy, refuse_setting
from lightning_hooks.callbacks._loggers import LoggerWriter, logger_writer
from lightning_hooks.callbacks._run import LightningRun
from lightning_hooks.callbacks._trainer import deferred, is_alone, is_log_step, loss_scale
from lightning_hooks.engine.assembly import Contribution
from lightning_hooks.engine.changing.bound import BoundTransform
from lightning_hooks.engine.changing.checks import refuse_unsupported
from lightning_hooks.engine.changing.participant import TransformParticipant
from lightning_hooks.engine.changing.resolve import resolve_applies
from lightning_hooks.engine.inspecting.match_report import MatchLine, transforms_report
from lightning_hooks.errors import RuleError
from lightning_hooks.records.consumer import Publisher
from lightning_hooks.records.step_view import StepView
from lightning_hooks.rules import Apply
from lightning_hooks.rules.reading import as_rules

if TYPE_CHECKING:
    from lightning_hooks.callbacks._lightning import LightningModule, Trainer


class AppliesRules(HooksCallback):
    """Base of the callbacks with `Apply` rules: their reports, their state, their checkpoints.

    Args:
        apply: rules, or mappings with the fields of a rule.

    Raises:
        RuleError: an invalid value.
    """

    default_tensor: ClassVar[str]
    """The tensor that a rule on modules changes if it names none."""

    def __init__(self, apply: Sequence[Mapping[str, Any] | Apply]) -> None:
        super().__init__()
        self._writer: LoggerWriter | None = None  # writes what transforms report, during a run
        self.apply = as_rules(Apply, apply, "apply")
        if not self.apply:
            raise RuleError("apply is an empty list; give at least one rule")
        for i, rule in enumerate(self.apply):
            self._refuse(rule, f"apply[{i}]")

    def _refuse(self, rule: Apply, where: str) -> None:
        """Refuse a rule that belongs in another callback."""

    def _make_participant(self, transforms: list[BoundTransform], trainer: Trainer) -> TransformParticipant:
        """The participant that runs the transforms."""
        raise NotImplementedError

    def __repr__(self) -> str:
        """The rules."""
        return f"{type(self).__name__}(apply={self.apply!r})"

    @property
    def participant(self) -> TransformParticipant | None:
        """The transforms in use during a run."""
        return next((p for p in self._participants if isinstance(p, TransformParticipant)), None)

    def bound_transforms(self, model: LightningModule, seed: int = 0, start: int = 0) -> list[BoundTransform]:
        """The rules resolved against a model: each transform with its targets.

        Args:
            model: the root module.
            seed: the seed of the random transforms.
            start: the index of the first transform.
        """
        return resolve_applies(model, self.apply, seed, start=start, default=self.default_tensor, where=self._label)

    @override
    def _refuse_setting(self, setting: Setting) -> None:
        # All processes must start a run, because transforms agree on a seed there.
        # Within a fit, a process may skip a validation.
        refuse_setting(setting, () if setting.function == "fit" else self._stages)
        about = [(f"{self._label}apply[{i}]", rule, (rule.acts_on(self.default_tensor),)) for i, rule in enumerate(self.apply)]
        refuse_for_strategy(setting, about)

    @override
    def _resolve(self, model: Any, trainer: Trainer | None = None, earlier: Earlier | None = None) -> list[BoundTransform]:
        if trainer is None:
            return self.bound_transforms(model)
        # All ranks must draw the same random numbers, so they use the seed of the first rank.
        seed = int(trainer.strategy.broadcast(torch.initial_seed()))
        return self.bound_transforms(model, seed, 0 if earlier is None else len(earlier.transforms))

    @override
    def _check_resolved(self, resolved: list[BoundTransform], setting: Setting, earlier: Earlier) -> Earlier:
        if not any(bound.targets for bound in resolved):
            return earlier
        refuse_unsupported(resolved, setting.optimizers, scaled=setting.is_scaled)
        return earlier._replace(transforms=(*earlier.transforms, *resolved))

    @override
    def _lines(self, resolved: list[BoundTransform]) -> list[MatchLine]:
        return transforms_report(resolved)

    @override
    def _contribute(self, trainer: Trainer, run: LightningRun, resolved: list[BoundTransform]) -> Contribution | None:
        if not any(bound.targets for bound in resolved):
            return None
        participant = self._make_participant(resolved, trainer)
        saved = self._saving.take()
        if saved:
            self._warn_of_damage(participant.load_state_dict(saved))
        self._writer = logger_writer(self, trainer, run)
        self._publisher = Publisher([self._writer])
        return Contribution(type(self).__name__, self._label, participants=[participant])

    @property
    @override
    def _rules(self) -> str:
        return ", ".join(f"apply[{i}]" for i in range(len(self.apply)))

    @override
    def _end_step(self, trainer: Trainer, step: int) -> None:
        run, transforms = self._current_run, self.participant
        if run is None or transforms is None or not run.hook_manager.acts(transforms) or not is_log_step(trainer, step):
            return
        # If a monitor takes part in the run, it writes what transforms report into its own event.
        if any(participant.reports for participant in run.participants):
            return
        # Call `take_reports` on every rank, also on ranks that write nothing: it may be a collective.
        reports = run.hook_manager.take_reports()
        if not reports or self._publisher is None:
            return
        try:
            lost = [] if self._writer is None else self._writer.skip_failed(run.failed_loggers)
            if lost and self._writer is not None and not self._writer.loggers:
                raise lost[0]
            self._publisher.publish(StepView(step, wall_time=time(), summaries=reports))
        except Exception as error:
            if not any(share.stopped for producer in run.producers.values() for share in producer.observer.shares):
                raise
            self._publisher = None
            warnings.warn(
                f"{type(self).__name__} stopped reporting after {type(error).__name__}: {error}; training continues",
                stacklevel=2,
            )

    @override
    def _detach(self, error: BaseException | None = None) -> None:
        self._writer = None
        super()._detach(error)

    @override
    def _state(self) -> dict[str, Any]:
        return {} if self.participant is None else self.participant.state_dict()

    @override
    def _load_state(self, state: dict[str, Any]) -> None:
        if self.participant is not None and state:
            self._warn_of_damage(self.participant.load_state_dict(state))


class GradientTransforms(AppliesRules):
    """Change gradients by rules, in the order written.

    A rule on `params` acts on the gradient of the optimizer step (`when="step"`: accumulated, unscaled, averaged over ranks,
    before Lightning's own clipping) or on each gradient as backward computes it (`when="backward"`). A rule on `modules` acts
    on the gradient that flows through the module.

    Every transform reports the gradient norm before and after, the share of reported steps on which it changed anything,
    and the cosine between before and after: in the event of a `StatsMonitor`, or every `log_every_n_steps` without one.

    Args:
        apply: rules, or mappings with the fields of a rule.

    Raises:
        RuleError: an invalid value; at fit start also a rule that matches nothing.
        UnsupportedError: at fit start, a rule that cannot be correct under a loss scaler.

    Example:
        >>> from lightning_hooks import Apply
        >>> from lightning_hooks.transforms import ClipByGlobalNorm
        >>> GradientTransforms(apply=[Apply(ClipByGlobalNorm(max_norm=1.0), params="*")]).apply[0].params
        '*'
    """

    default_tensor: ClassVar[str] = "output_grad"

    @override
    def _refuse(self, rule: Apply, where: str) -> None:
        if rule.acts_at() == "forward":
            raise RuleError(
                f"{where}.tensor: {rule.tensor!r} is an activation, and GradientTransforms changes gradients; use "
                "ActivationTransforms"
            )

    @override
    def _make_participant(self, transforms: list[BoundTransform], trainer: Trainer) -> TransformParticipant:
        scale = deferred(trainer, loss_scale, None)
        return TransformParticipant(transforms, scale=scale, rank=trainer.global_rank, alone=is_alone(trainer))


class ActivationTransforms(AppliesRules):
    """Change outputs or inputs of modules by rules, in the order written.

    Autograd differentiates through the change: elements set to zero get no gradient, scaled elements get a scaled gradient.
    A rule acts in training only, unless its `stages` name others; then validation also uses the changed model. The sanity
    check before training is never changed.

    Every transform reports norm before and after, share of steps on which it acted, and cosine, as in
    `GradientTransforms`.

    Args:
        apply: rules on modules, or mappings with the fields of a rule; `tensor` is `output` by default.

    Raises:
        RuleError: an invalid value; at fit start also a rule that matches nothing.

    Example:
        >>> from lightning_hooks import Apply
        >>> from lightning_hooks.transforms import Zero
        >>> rules = [Apply(Zero(index=[3]), modules="encoder.0", stages=["train", "validate"])]
        >>> ActivationTransforms(apply=rules).apply[0].stages
        ('train', 'validate')
    """

    default_tensor: ClassVar[str] = "output"

    @override
    def _refuse(self, rule: Apply, where: str) -> None:
        if rule.params is not None:
            raise RuleError(f"{where}.params: a parameter has no activation; name modules, or use GradientTransforms")
        if rule.acts_at(self.default_tensor) != "forward":
            raise RuleError(
                f"{where}.tensor: {rule.tensor!r} is a gradient, and ActivationTransforms changes activations ('output', "
                "'input'); use GradientTransforms"
            )

    @property
    @override
    def _stages(self) -> Collection[str]:
        return {stage for rule in self.apply for stage in rule.stages or ("train",)}

    @override
    def _make_participant(self, transforms: list[BoundTransform], trainer: Trainer) -> TransformParticipant:
        return TransformParticipant(transforms, rank=trainer.global_rank)
