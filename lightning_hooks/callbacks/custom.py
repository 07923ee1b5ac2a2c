"""`CustomHooks`: registers a user's own hooks by `Hook` rules."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import nn
from typing_extensions import override

from lightning_hooks.callbacks._base import HooksCallback
from lightning_hooks.callbacks._checks import Earlier, Setting, refuse_for_strategy
from lightning_hooks.callbacks._job import Job
from lightning_hooks.callbacks._trainer import deferred, optimizers_of
from lightning_hooks.engine.assembly import Contribution
from lightning_hooks.engine.inspecting.match_report import MatchLine, hooks_report
from lightning_hooks.engine.plain_loop.changing import calling_hooks
from lightning_hooks.engine.plain_loop.part import LoopPart
from lightning_hooks.engine.plain_loop.run import LoopRun
from lightning_hooks.engine.user_hooks.participant import BoundHook, UserHooksParticipant, resolve_hooks
from lightning_hooks.errors import RuleError
from lightning_hooks.rules import Hook
from lightning_hooks.rules.reading import as_rules

if TYPE_CHECKING:
    from lightning_hooks.callbacks._lightning import Trainer
    from lightning_hooks.callbacks._run import LightningRun


class Calling(Job["CustomHooks", list[BoundHook]]):
    """The job of `CustomHooks`."""

    @property
    @override
    def rules(self) -> str:
        return ", ".join(f"hooks[{i}]" for i in range(len(self.owner.hooks)))

    @property
    @override
    def stages(self) -> Collection[str]:
        return {stage for rule in self.owner.hooks for stage in rule.stages}

    @override
    def refuse_setting(self, setting: Setting) -> None:
        refuse_for_strategy(setting, [(f"{self.label}hooks[{i}]", rule, ()) for i, rule in enumerate(self.owner.hooks)])

    @override
    def resolve(self, model: nn.Module, trainer: Trainer | None = None, earlier: Earlier | None = None) -> list[BoundHook]:
        return resolve_hooks(model, self.owner.hooks, self.label)

    @override
    def lines(self, resolved: list[BoundHook]) -> list[MatchLine]:
        return hooks_report(resolved)

    @override
    def in_loop(self, run: LoopRun) -> LoopPart:
        return LoopPart(calling_hooks(run, self.owner.hooks, type(self.owner).__name__, self.label))

    @override
    def contribute(self, trainer: Trainer, run: LightningRun, resolved: list[BoundHook]) -> Contribution | None:
        if not any(hook.runners for hook in resolved):
            return None
        participant = UserHooksParticipant(resolved, optimizers=deferred(trainer, optimizers_of, ()))
        return Contribution(type(self.owner).__name__, self.label, participants=[participant])


class CustomHooks(HooksCallback):
    """Register your own hooks on matched modules, parameters and optimizers during a run.

    Several hooks on one target run in the order written, and each gets the result of the previous one. Hooks of several
    callbacks of this package on the same target run in the order of the callbacks. The return value of a hook is checked, and
    so is that the hook changes nothing in place.

    Args:
        hooks: rules, or mappings with the fields of a rule.

    Raises:
        RuleError: an invalid value; at fit start also a rule that matches nothing.
        HookError: during training, a hook returned or did something that would corrupt the run.

    Example:
        >>> from lightning_hooks.hooks import print_shapes
        >>> CustomHooks(hooks=[Hook(print_shapes, kind="forward", modules="*", types="Linear", once=True)])
        CustomHooks(hooks=[Hook(call=print_shapes, kind='forward', modules='*', types=('Linear',), once=True)])
    """

    def __init__(self, hooks: Sequence[Mapping[str, Any] | Hook]) -> None:
        super().__init__(Calling(self))
        self.hooks = as_rules(Hook, hooks, "hooks")
        if not self.hooks:
            raise RuleError("hooks is an empty list; give at least one rule")

    def __repr__(self) -> str:
        """The rules."""
        return f"CustomHooks(hooks={self.hooks!r})"
