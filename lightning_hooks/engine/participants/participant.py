"""A participant: what acts through the hook manager, and what that calls on it."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_hooks.engine.participants.overhead import Account
from lightning_hooks.hooks import Action, Handles, HookSwitch
from lightning_hooks.rules.patterns import Target


class ModuleRule(NamedTuple):
    """A rule of a participant at modules.

    Args:
        where: how a message names the rule: `apply[0].modules`.
        targets: the modules.
        effect: what the rule does to the training, in words: `a changed activation`; empty if the rule only reads.
        is_traceable: whether the rule can be part of a compiled graph.
    """

    where: str
    targets: Sequence[Target[nn.Module]]
    effect: str = ""
    is_traceable: bool = True


class Participant:
    """One stage of a monitor, a set of transforms, a user's hooks, a capture, or the watch over the loss scaler.

    Attributes:
        reports: whether it writes what transforms report.
        acts_before: whether it reads or changes anything in `before_step`.
        reads_final: whether it acts in the phase `final`.
        reads_updates: whether it acts in `before_update` and `after_update`.
        serves_all: whether the others need what it notes in `before_step`: it goes before them.
        graph_key: the key of everything that it does at modules in any step, where it can act inside compiled code; else None.
        owner: the class of its callback, for messages; empty in a plain loop.
        account: takes the time of its work; opened by the hook manager when it joins.
        loss_scale: by which gradients of activations, and those of parameters before the optimizer's step, are still multiplied
            in the backward under way; None without a loss scaler. Set by the hook manager before `scaled_by` is called.
    """

    reports: bool = False
    acts_before: bool = False
    reads_final: bool = False
    reads_updates: bool = False
    serves_all: bool = False
    graph_key: Hashable | None = None
    owner: str = ""
    account: Account
    loss_scale: Tensor | None = None

    def due(self, step: int, stage: str) -> Hashable | None:
        """A key that says what it does at a step (equal keys, equal hooks), or None for nothing. Asked once at every step.

        In the stages `validate`, `test` and `predict` a step is a running number of the batch.
        """
        raise NotImplementedError

    def joined(self, switch: HookSwitch, handles: Handles) -> None:
        """Called when it has joined a hook manager: install what stays until the run ends."""

    def left(self) -> None:
        """Called when it has left: forget what belongs to the run; a second call does nothing."""

    def all_targets(self) -> Iterable[Target[Any]]:
        """The modules and parameters that its rules matched. One that is replaced during a fit is replaced in the target."""
        return ()

    def refreshed(self) -> None:
        """Called when targets hold other objects than before: forget what was derived from those."""

    def actions(self, key: Any) -> Iterable[Action]:
        """What it does with tensors of modules and gradients of parameters. Those with one tensor run in this order."""
        return ()

    def module_rules(self, key: Any = None) -> Iterable[ModuleRule]:
        """Its rules at modules: those of the steps with a key, or without one those of all steps.

        Rules whose hooks do not note that their module was called are not among those of a key.
        """
        return ()

    def register(self, key: Any, switch: HookSwitch, handles: Handles) -> None:
        """Register hooks that cannot be shared with other participants; called when the hooks of a step are installed."""

    def begin_step(self, step: int, stage: str, reporting: bool) -> None:
        """Called when a step begins in which it acts."""

    def begin_batch(self) -> None:
        """Called when a batch of such a step begins; perhaps several times."""

    def end_step(self) -> None:
        """Called when such a step has ended."""

    def note_cost(self, own: float, wall: float | None) -> None:
        """Called when the next step of training begins, whether or not it acted in the one before.

        Args:
            own: seconds that it took, outside hooks of modules; what all participants have in common included.
            wall: seconds of the step, if they are known.
        """

    def before_step(self, optimizer: Optimizer, memo: PhaseMemo) -> None:
        """Called with accumulated, unscaled, averaged gradients."""

    def final(self, optimizer: Optimizer, memo: PhaseMemo) -> None:
        """Called with the gradients that the optimizer will consume."""

    def before_update(self, optimizer: Optimizer, memo: PhaseMemo) -> None:
        """Called before the optimizer changes the parameters; what the training step did to them is done."""

    def after_update(self, optimizer: Optimizer, memo: PhaseMemo) -> None:
        """Called after the optimizer changed the parameters."""

    def scaled_by(self, factor: Tensor | None) -> None:
        """Called before a backward whose loss is multiplied by `loss_scale`.

        Args:
            factor: that scale over the one of the backward before, if the two may differ inside a step; None otherwise.
        """

    def take_reports(self) -> dict[str, float]:
        """What it did in the step that ends, tag to value; asked for once."""
        return {}


Active: TypeAlias = tuple[tuple[Participant, Hashable], ...]
"""Who acts in a step, with the key of what they do. Equal for steps that need the same hooks."""


@dataclass
class PhaseMemo:
    """What participants share in the phases of one optimizer's step.

    Args:
        acted: the participants that were called with `before_step`.
        waiting: those whose `before_update` follows their `before_step`, in the closure of the step.
        skipped: the step does not happen, although the optimizer is called.
        found_inf: of a loss scaler, on the device; above 0 the step does not happen either.
        scale: by which the gradients are still multiplied; None where they are not.
    """

    acted: list[Participant] = field(default_factory=list)
    waiting: list[Participant] = field(default_factory=list)
    skipped: bool = False
    found_inf: Tensor | None = None
    scale: Tensor | None = None


def warn_unseen(optimizer: Optimizer, participants: Iterable[Participant], has_closure: bool) -> bool:
    """Warn that an optimizer has stepped and no participant was called before; False where that does not concern them.

    `has_closure` says that the step was given a closure, for which `before_update` has waited in vain.
    """
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    missed = [each for each in participants if each.acts_before or (has_closure and each.reads_updates)]
    targets = (target for each in missed for target in each.all_targets())
    if not any(id(target.value) in held for target in targets):
        return False
    tensors = "'param', 'grad' and 'update'" if has_closure else "'param' and 'grad'"
    warnings.warn(
        f"{type(optimizer).__name__} has stepped without Lightning's on_before_optimizer_step: {tensors} of its parameters "
        "have no rows, and rules with when='step' do not change their gradients. The usual reason is a direct step, as after "
        "self.optimizers(use_pl_optimizer=False): call step() of what self.optimizers() returns",
        stacklevel=2,
    )
    return True
