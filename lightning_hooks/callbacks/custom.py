"""`CustomHooks`: a user's own hooks, placed by rules."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any
from weakref import ref

from lightning.pytorch import LightningModule, Trainer
from torch.optim import Optimizer
from typing_extensions import override

from lightning_hooks.callbacks._base import HooksCallback
from lightning_hooks.callbacks._strategies import refuse_unsupported
from lightning_hooks.engine.custom import CustomParticipant, resolve_hooks
from lightning_hooks.engine.dispatcher import Dispatcher
from lightning_hooks.engine.participant import Participant
from lightning_hooks.engine.report import Match, hooks_report
from lightning_hooks.errors import RuleError
from lightning_hooks.reading import as_rules
from lightning_hooks.rules import Hook


class CustomHooks(HooksCallback):
    """Put hooks of your own on matched modules, parameters and optimizers, for as long as a run lasts.

    Several hooks at one place run in the order written, each seeing what the former returned; with other callbacks of this
    package there too, in the order of the callbacks. What a hook returns is checked, and so is that it changes nothing in
    place.

    Args:
        hooks: rules, or mappings that hold a rule's fields.

    Raises:
        RuleError: a value that cannot be meant; at fit start also a rule that matches nothing.
        HookError: while training, a hook that returned or did something that would corrupt the run.

    Example:
        >>> from lightning_hooks import print_shapes
        >>> CustomHooks(hooks=[Hook(print_shapes, kind="forward", modules="*", types="Linear", once=True)])
        CustomHooks(hooks=[Hook(call=print_shapes, kind='forward', modules='*', types=('Linear',), once=True)])
    """

    def __init__(self, hooks: Sequence[Mapping[str, Any] | Hook]) -> None:
        super().__init__()
        self.hooks = as_rules(Hook, hooks, "hooks")
        if not self.hooks:
            raise RuleError("hooks is an empty list; give at least one rule")

    def __repr__(self) -> str:
        """The rules."""
        return f"CustomHooks(hooks={self.hooks!r})"

    def match(self, model: LightningModule) -> Match:
        """What the rules match in a model, without training.

        Args:
            model: the root.

        Raises:
            RuleError: where a fit would.
        """
        return Match(hooks_report(resolve_hooks(model, self.hooks)))

    @property
    @override
    def _stages(self) -> Collection[str]:
        return {stage for rule in self.hooks for stage in rule.stages}

    @override
    def _build(self, trainer: Trainer, pl_module: LightningModule, dispatcher: Dispatcher) -> Sequence[Participant]:
        refuse_unsupported(trainer, [(f"hooks[{i}]", rule, ()) for i, rule in enumerate(self.hooks)])
        known = ref(trainer)

        def optimizers() -> list[Optimizer]:
            alive = known()
            return list(alive.optimizers) if alive is not None else []

        bound = resolve_hooks(pl_module, self.hooks)
        if not any(hook.runners for hook in bound):
            return []
        return [CustomParticipant(bound, optimizers=optimizers)]

    @property
    @override
    def _rules(self) -> str:
        return ", ".join(f"hooks[{i}]" for i in range(len(self.hooks)))
