"""The interface of a participant: what acts through the hook manager, and the methods that the hook manager calls on it."""

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
        is_written: whether a user wrote the rule, who is then warned of each module that is not called.
    """

    where: str
    targets: Sequence[Target[nn.Module]]
    effect: str = ""
    is_traceable: bool = True
    is_written: bool = True


class Participant:
    """One stage of a monitor, a set of transforms, a user's hooks, a capture, or the watch over the loss scaler.

    Attributes:
        reports: whether the participant writes the reports of transforms.
        acts_before: whether it reads or changes anything in `before_step`.
        reads_final: whether it acts in the phase `final`.
        reads_updates: whether it acts in `before_update` and `after_update`.
        serves_all: whether other participants need what it notes in `before_step`; then the hook manager calls it first.
        graph_key: the key of everything that it does at modules in any step; None if it does not act inside compiled code.
        owner: the class of its callback, for messages; empty in a plain loop.
        is_absent: whether its callback was removed from the list of its Trainer; it then does not act.
        account: takes the time of its work; created by the hook manager when the participant joins.
        loss_scale: the scale by which gradients of activations, and gradients of parameters before the optimizer's step, are
            still multiplied in the current backward; None without a loss scaler. Set by the hook manager before `scaled_by`.
    """

    reports: bool = False
    acts_before: bool = False
    reads_final: bool = False
    reads_updates: bool = False
    serves_all: bool = False
    graph_key: Hashable | None = None
    owner: str = ""
    is_absent: bool = False
    account: Account
    loss_scale: Tensor | None = None

    @property
    def reports_now(self) -> bool:
        """Whether the participant writes the reports of transforms at the step under way, in which it acts."""
        return self.reports

    def step_key(self, step: int, stage: str) -> Hashable | None:
        """The key of what the participant does at a step: equal keys need equal hooks. None if it does nothing.

        Called once at every step. In the stages `validate`, `test` and `predict`, `step` is the number of the batch.
        """
        raise NotImplementedError

    def joined(self, switch: HookSwitch, handles: Handles) -> None:
        """Called when the participant has joined a hook manager: register the hooks that stay until the run ends."""

    def left(self) -> None:
        """Called when the participant has left: forget what belongs to the run; a second call does nothing."""

    def all_targets(self) -> Iterable[Target[Any]]:
        """The modules and parameters that its rules matched. If one is replaced during a fit, its target holds the new one."""
        return ()

    def refreshed(self) -> None:
        """Called when targets hold other objects than before: forget what was derived from the old objects."""

    def changes(self) -> Iterable[tuple[int, str]]:
        """The tensors that it may change: the id of the module or parameter, and the tensor, as `Action` names it."""
        return ()

    def actions(self, key: Any) -> Iterable[Action]:
        """What it does with tensors of modules and gradients of parameters. Actions on the same tensor run in this order."""
        return ()

    def module_rules(self, key: Any = None) -> Iterable[ModuleRule]:
        """The rules at modules that act in steps with a key, or without a key in any step.

        With a key, rules are excluded whose hooks do not note that their module was called.
        """
        return ()

    def register(self, key: Any, switch: HookSwitch, handles: Handles) -> None:
        """Register hooks that cannot be shared with other participants; called when the hooks of a step are installed."""

    def begin_step(self, step: int, stage: str, reporting: bool) -> None:
        """Called when a step begins in which the participant acts.

        Args:
            step: as of `step_key`.
            stage: likewise.
            reporting: whether transforms prepare reports, because the reports of this step are written.
        """

    def begin_batch(self) -> None:
        """Called when a batch of a step begins in which the participant acts; perhaps several times for one batch."""

    def saw_batch(self, batch: Any) -> None:
        """Called with each batch of a step in which it acts, by drivers that know the batches: not in a plain loop."""

    def saw_loss(self, loss: Tensor) -> None:
        """Called with the loss and its graph before its backward, in a step in which it acts.

        A Trainer gives it as it is differentiated, divided for an accumulation and multiplied by a loss scale.
        """

    def look_at_loss(self) -> None:
        """Called when the loss is measured, before its backward."""

    def end_step(self) -> None:
        """Called when a step has ended in which the participant acted."""

    def before_publishing(self) -> None:
        """Called for a reader of a table before the views of finished steps reach their consumers."""

    def note_cost(self, own: float, common: float, wall: float | None) -> None:
        """Called when the next training step begins, whether or not the participant acted in the previous one.

        Args:
            own: seconds that the participant took in the previous step outside hooks of modules.
            common: seconds of the work that all participants have in common.
            wall: seconds of the previous step; None if they are not known.
        """

    def before_step(self, optimizer: Optimizer, memo: PhaseMemo) -> None:
        """Called with accumulated, unscaled, averaged gradients."""

    def final(self, optimizer: Optimizer, memo: PhaseMemo) -> None:
        """Called with the gradients that the optimizer will consume."""

    def before_update(self, optimizer: Optimizer, memo: PhaseMemo) -> None:
        """Called before the optimizer changes the parameters, after everything that the training step did to them."""

    def after_update(self, optimizer: Optimizer, memo: PhaseMemo) -> None:
        """Called after the optimizer changed the parameters."""

    def scaled_by(self, factor: Tensor | None) -> None:
        """Called before a backward whose loss is multiplied by `loss_scale`.

        Args:
            factor: `loss_scale` over the scale of the previous backward, if the two may differ inside a step; else None.
        """

    def take_reports(self) -> dict[str, float]:
        """What the participant did in the finished step, tag to value; called once per step."""
        return {}


Active: TypeAlias = tuple[tuple[Participant, Hashable], ...]
"""The participants that act in a step, each with its key. Equal for steps that need the same hooks."""


@dataclass
class PhaseMemo:
    """What participants share in the phases of one optimizer's step.

    Args:
        has_begun: whether the phase `before_step` was run, for whichever participant.
        acted: the participants whose `before_step` was called.
        waiting: the participants whose `before_update` is called right after their `before_step`, in the closure of the step.
        skipped: whether a transform skips the step: the optimizer is called without gradients.
        found_inf: what the loss scaler found, a scalar on the device; above 0 the step is skipped too.
        scale: the loss scale by which the gradients are still multiplied; None if they are unscaled.
    """

    has_begun: bool = False
    acted: list[Participant] = field(default_factory=list)
    waiting: list[Participant] = field(default_factory=list)
    skipped: bool = False
    found_inf: Tensor | None = None
    scale: Tensor | None = None


def warn_unseen(optimizer: Optimizer, participants: Iterable[Participant], has_closure: bool) -> bool:
    """Warn that an optimizer has stepped without `before_step`. Returns False if no participant reads its parameters there.

    `has_closure` says that the step had a closure that did not run `before_step`, so `before_update` was not called either.
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
