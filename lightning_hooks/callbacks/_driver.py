"""The driver of a Trainer: assembles a run from its callbacks, and passes on when batches and steps begin and end."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.optim import Optimizer

from lightning_hooks.callbacks._checks import Setting, setting_of
from lightning_hooks.callbacks._ours import our_callbacks
from lightning_hooks.callbacks._run import LightningRun, run_of
from lightning_hooks.callbacks._trainer import (
    all_callbacks,
    current_step,
    ends_window,
    is_alone,
    is_log_step,
    is_trainer_of,
    loss_divisor,
    loss_scale,
    warn_if_replaced,
)
from lightning_hooks.engine.assembly import Assembled, Assembly, Contribution, assemble
from lightning_hooks.engine.watching.producer import Producer

if TYPE_CHECKING:
    from lightning_hooks.callbacks._base import HooksCallback
    from lightning_hooks.callbacks._lightning import Callback, LightningModule, Trainer


def begin_run(trainer: Trainer, pl_module: LightningModule, callbacks: Sequence[HooksCallback]) -> None:
    """Assemble a run from callbacks, and let them take part.

    Args:
        trainer: the Trainer.
        pl_module: the model, on its device.
        callbacks: those that act in the run, in order.

    Raises:
        RuleError, UnsupportedError: a rule is invalid in this model, or in this setting. No callback then takes part.
    """
    run = run_of(trainer, pl_module)
    run.ends_batch = end_batch
    try:
        given = _contributions(trainer, pl_module, run, callbacks)
        contributions = _with_those_of_others(trainer, given)
        assembly = _assembled(trainer, run, contributions)
        run.producers = assembly.producers
        if assembly.lookouts:
            run.facts.of_model.lookouts = assembly.lookouts
        made = {id(each): assembled for each, assembled in zip(contributions, assembly.assembled, strict=True)}
        _join(trainer, run, [(callback, made[id(contribution)]) for callback, contribution in given], assembly)
    except BaseException:
        for callback in callbacks:
            callback._detach()
        run.close()
        raise


def _contributions(
    trainer: Trainer, pl_module: LightningModule, run: LightningRun, callbacks: Sequence[HooksCallback]
) -> list[tuple[HooksCallback, Contribution]]:
    """Resolve and check the rules of all callbacks, then let each build what it brings into the run."""
    setting = setting_of(trainer, pl_module)
    resolved = [(callback, _checked(callback, trainer, pl_module, run, setting)) for callback in callbacks]
    given: list[tuple[HooksCallback, Contribution]] = []
    for callback, each in resolved:
        job = callback._job
        with job.naming_origin():
            contribution = job.contribute(trainer, run, each)
        if contribution is not None:
            given.append((callback, contribution))
        else:
            name = job.label or f"{type(callback).__name__}: "
            warnings.warn(f"{name}no rule matches anything ({job.rules}); it does nothing in this run", stacklevel=2)
    return given


def _with_those_of_others(trainer: Trainer, given: Sequence[tuple[HooksCallback, Contribution]]) -> list[Contribution]:
    """The contributions of our callbacks, with those of other callbacks that may change gradients, in the order of the list."""
    ours = {id(callback): contribution for callback, contribution in given}
    contributions: list[Contribution] = []
    for callback in all_callbacks(trainer):
        if id(callback) in ours:
            contributions.append(ours[id(callback)])
        elif not type(callback).__module__.startswith("lightning_hooks.") and _acts_before_steps(callback):
            contributions.append(Contribution(type(callback).__name__, may_change_gradients=True))
    return contributions


def _acts_before_steps(callback: Callback) -> bool:
    """Whether a callback overrides the method that is called before the step of an optimizer."""
    method = type(callback).on_before_optimizer_step
    return getattr(method, "__qualname__", "") != "Callback.on_before_optimizer_step"


def _checked(callback: HooksCallback, trainer: Trainer, pl_module: LightningModule, run: LightningRun, setting: Setting) -> Any:
    job = callback._job
    with job.naming_origin():
        job.refuse_setting(setting)
        resolved = job.resolve(pl_module, trainer, run.earlier)
        run.earlier = job.check(resolved, setting, run.earlier)
    return resolved


def _assembled(trainer: Trainer, run: LightningRun, contributions: Sequence[Contribution]) -> Assembly:
    return assemble(
        contributions,
        device=run.model.device,
        alone=is_alone(trainer),
        facts=run.facts.of_step,
        structure=run.facts.of_model.structure if any(each.plans for each in contributions) else None,
    )


def _join(trainer: Trainer, run: LightningRun, given: Sequence[tuple[HooksCallback, Assembled]], assembly: Assembly) -> None:
    for callback, made in given:
        callback._job.assembled(run, made)
    for position, (callback, made) in enumerate(given):
        # Set the run before it begins: if Ctrl-C arrives in between, `_detach` still leaves the run.
        callback._current_run = run
        run.take_part(callback, callback._participants, callback._leave)
        if position == 0:
            run.join(*assembly.observers)
        participants = list(made.participants)
        if "train" in callback._job.stages:
            participants = [*callback._saving.skipped.start(trainer, run.hook_manager), *participants]
        for participant in participants:
            participant.owner = type(callback).__name__
            callback._participants.append(participant)
        run.join(*participants)


def begin_batch(run: LightningRun, trainer: Trainer, pl_module: LightningModule) -> None:
    """At the first batch of a step ask which participants act, then install the hooks. May be called several times."""
    warn_if_replaced(trainer, pl_module)
    step = current_step(trainer)
    # With automatic optimization, Lightning announces every backward in on_before_backward. A `loss.backward()` in the
    # training step of manual optimization is not announced.
    announced = pl_module.automatic_optimization and is_trainer_of(trainer, pl_module)
    run.begin_batch(step, reporting=is_log_step(trainer, step), announced=announced)


def before_backward(run: LightningRun, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
    """Gradients are those of the loss from now on: note the loss scale, and measure the loss."""
    hook_manager = run.hook_manager
    hook_manager.backward_begins()
    if not hook_manager.switch.is_on:
        return
    scale = loss_scale(trainer)
    if scale is not None:
        hook_manager.scaled_by(scale)
    acting = hook_manager.acting
    for participant in acting.does["saw_loss"]:
        participant.saw_loss(loss)
    producer = run.producers.get("train")
    if producer is not None and producer.observer in acting.members:
        producer.observer.whole_rows.note_loss(loss, loss_divisor(trainer, pl_module))
        for participant in acting.does["look_at_loss"]:
            participant.look_at_loss()


def before_optimizer_step(run: LightningRun, callback: HooksCallback, optimizer: Optimizer) -> None:
    """Let the participants of a callback read or change gradients, and note the facts of the optimizers."""
    hook_manager = run.hook_manager
    if not hook_manager.switch.is_on:
        return
    producer = run.producers.get("train")
    if producer is not None and hook_manager.acts(producer.observer) and not producer.is_between:
        with producer.guard():
            run.facts.note()
    hook_manager.before_step(callback._participants, optimizer)
    # The observer has no turn of its own. It copies the parameters when all callbacks have had theirs.
    if producer is not None and run.ends_with(callback):
        hook_manager.before_step((producer.observer,), optimizer)


def end_batch(run: LightningRun, trainer: Trainer) -> None:
    """Remove the hooks after a batch; after the last batch of a step, end the step. A second call does nothing."""
    hook_manager = run.hook_manager
    hook_manager.end_batch()
    if not run.take_batch():
        return
    run.note_removed()
    producer = run.producers.get("train")
    if hook_manager.idle and not run.is_pending:
        return
    step = hook_manager.step
    if step is None or not ends_window(trainer):
        return
    if producer is not None:
        _end_step(run, producer, step)
    run.tell_ended(trainer, step)
    hook_manager.end_step()


def _end_step(run: LightningRun, producer: Producer, step: int) -> None:
    hook_manager, observer = run.hook_manager, producer.observer
    acts = not observer.stopped and hook_manager.acts(observer) and producer.publishes
    if not acts and not producer.is_pending:
        return
    with producer.guard():
        if not acts:
            producer.agree()
            return
        due = [(observer.shares[number], schedules) for number, schedules in observer.due_shares.items()]
        producer.end(step, hook_manager.take_reports)
        for share, schedules in due:
            # Only the first watched step of a share says which of its modules are called.
            if share.uncalled_classes is None and not share.plan.is_between(schedules):
                share.note_uncalled(hook_manager.called, schedules)


def end_epoch(run: LightningRun, trainer: Trainer) -> None:
    """After an epoch, also one that was cut short: remove the hooks, and drop a step that has not ended.

    Lightning clears the gradients of such a step before the first backward of the next epoch. A strategy that accumulates by
    itself keeps the gradients, so with it the step continues.
    """
    run.hook_manager.end_batch()
    if not trainer.strategy.handles_gradient_accumulation:
        run.hook_manager.end_step()


def flush(run: LightningRun | None) -> None:
    """Publish the finished steps, waiting for tables that are still being copied from a device."""
    producer = None if run is None else run.producers.get("train")
    if producer is not None:
        producer.flush()


def end_stage(run: LightningRun, trainer: Trainer, stage: str) -> None:
    """Publish the run of a stage other than `train`: one validation, for example. A second call does nothing."""
    producer = run.producers.get(stage)
    if producer is not None and run.take_stage(stage) and not producer.observer.stopped:
        with producer.guard():
            try:
                producer.end(current_step(trainer), dict)
            finally:
                # The next run of this stage begins with an empty table.
                producer.observer.table.clear()


def acting(trainer: Trainer, stage: str | None = None) -> list[HooksCallback]:
    """The callbacks of this package that act in a fit, or in a run of another stage outside a fit, in order."""
    jobs = [(each, each._job) for each in our_callbacks(trainer)]
    return [each for each, job in jobs if (job.acts_in_fit if stage is None else stage in job.stages)]


def is_last(trainer: Trainer, callback: Callback, callbacks: Sequence[Callback]) -> bool:
    """Whether Lightning calls a callback after all the others of some callbacks."""
    order = [each for each in all_callbacks(trainer) if any(each is one for one in callbacks)]
    return bool(order) and order[-1] is callback
