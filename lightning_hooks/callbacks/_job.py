"""Job: what a callback does in runs. The callback keeps the options; Lightning calls it, and it asks its job."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self, TypeVar

from torch import nn

from lightning_hooks.callbacks._checks import Earlier, Setting
from lightning_hooks.engine.assembly import Assembled, Contribution
from lightning_hooks.engine.inspecting.left_out import LeftOut
from lightning_hooks.engine.inspecting.match_report import MatchLine
from lightning_hooks.errors import RuleError, UnsupportedError
from lightning_hooks.records.consumer import Publisher, StepConsumer
from lightning_hooks.rules import Watch

if TYPE_CHECKING:
    from lightning_hooks.callbacks._base import HooksCallback
    from lightning_hooks.callbacks._lightning import Trainer
    from lightning_hooks.callbacks._loop_monitor import LoopGuest
    from lightning_hooks.callbacks._run import LightningRun
    from lightning_hooks.engine.plain_loop.part import LoopPart
    from lightning_hooks.engine.plain_loop.run import LoopRun

Owner = TypeVar("Owner", bound="HooksCallback")
Resolved = TypeVar("Resolved")


class Guest(NamedTuple):
    """A job that reads the steps of a monitor beside it.

    Args:
        rules: what the monitor has to watch besides its own rules.
        consumer: makes the consumer of its steps when the run begins; it is given the writer and the context of the monitor.
        every_step: whether the monitor has to measure the loss, the whole gradient and the batch at every step.
    """

    rules: Sequence[Watch]
    consumer: Callable[[Any, Any], StepConsumer]
    every_step: bool = False


class Job(Generic[Owner, Resolved]):
    """What a callback does in runs, by the present values of its options.

    A subclass defines `rules`, `resolve`, `lines` and `contribute`, and overrides those of the other methods in which it acts.

    Args:
        owner: the callback.

    Attributes:
        owner: the callback.
        run: the run in which the callback takes part; set by `contribute`, None outside a run.
        publisher: passes step views to consumers; closed with the run.
        notes_calls: whether it is that of a flight recorder, beside which nothing else notes the calls of layers.
    """

    notes_calls = False

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.run: LightningRun | None = None
        self.publisher: Publisher | None = None

    def for_copy(self) -> Self:
        """The job of a copy of the callback: it belongs to no run. The copy sets `owner`."""
        copied = copy.copy(self)
        copied.run = copied.publisher = None
        copied.owner = None  # type: ignore[assignment]
        return copied

    @property
    def label(self) -> str:
        """The prefix of rules' names in messages: the file and the class; empty if the callback was created in Python."""
        return f"{self.owner.origin}: {type(self.owner).__name__}: " if self.owner.origin else ""

    @contextmanager
    def naming_origin(self) -> Iterator[None]:
        """Put the file of the callback in front of errors that do not name it."""
        try:
            yield
        except (RuleError, UnsupportedError) as error:
            if str(error).startswith(self.label):
                raise
            raise type(error)(f"{self.label}{error}") from error

    @property
    def rules(self) -> str:
        """The rules by the names that messages use: `watch[0], watch[1]`."""
        raise NotImplementedError

    @property
    def stages(self) -> Collection[str]:
        """The stages in which the callback acts: some of `train`, `validate`, `test`, `predict`."""
        return self.owner.stages

    @property
    def acts_in_fit(self) -> bool:
        """Whether the callback takes part in a fit, which may include validations."""
        return not {"train", "validate"}.isdisjoint(self.stages)

    def refuse_beside(self, callbacks: Sequence[HooksCallback]) -> None:
        """Refuse other callbacks of the same Trainer with which this one cannot run; called before anything is written.

        Args:
            callbacks: the callbacks of this package in the Trainer, in order.

        Raises:
            RuleError: there is such a callback.
        """

    def refuse_setting(self, setting: Setting) -> None:
        """Refuse a setting that the callback does not support with any model; called before ranks exchange anything."""

    def guest_of(self, monitor: Job[Any, Any], trainer: Trainer) -> Guest | None:
        """What this job asks of a monitor of the same Trainer; None if it has nothing to do with that monitor."""
        return None

    def resolve(self, model: nn.Module, trainer: Trainer | None = None, earlier: Earlier | None = None) -> Resolved:
        """The rules resolved against a model.

        Args:
            model: the root module.
            trainer: the Trainer, whose run begins, or which has no run yet; None for a report on this callback alone.
            earlier: what earlier callbacks do; None for nothing.

        Raises:
            RuleError: a rule is invalid in this model, or matches nothing.
        """
        raise NotImplementedError

    def check(self, resolved: Resolved, setting: Setting, earlier: Earlier) -> Earlier:
        """Check the resolved rules, without changing anything: both `fit` and `match` call this method.

        Args:
            resolved: the result of `resolve`.
            setting: how the run trains.
            earlier: what earlier callbacks do.

        Returns:
            What earlier callbacks and this one do.

        Raises:
            RuleError: the rules are not valid together with those of earlier callbacks.
            UnsupportedError: the rules cannot have a correct result in this setting.
        """
        return earlier

    def lines(self, resolved: Resolved) -> list[MatchLine]:
        """What the rules match, for a report."""
        raise NotImplementedError

    def left_out(self, model: nn.Module, resolved: Resolved) -> list[LeftOut]:
        """What the rules leave out although their patterns match it, for a report."""
        return []

    def contribute(self, trainer: Trainer, run: LightningRun, resolved: Resolved) -> Contribution | None:
        """What the callback brings into a run that begins; None if no rule matches anything. No hook is registered yet."""
        raise NotImplementedError

    def in_loop(self, run: LoopRun) -> LoopPart:
        """What the callback does in a block of `instrument`; arguments and errors as of `InLoop.in_loop`."""
        raise NotImplementedError

    def guest_in_loop(self, monitor: Job[Any, Any], run: LoopRun) -> LoopGuest | None:
        """What this job asks of a monitor of the same block; None if it has nothing to do with that monitor."""
        return None

    def assembled(self, run: LightningRun, made: Assembled) -> None:
        """Called when the run is assembled, before any hook is registered."""

    def begin_batch(self, batch: Any, batch_idx: int) -> None:
        """Called before a batch of training, when the hooks are registered.

        Args:
            batch: on the device of the model.
            batch_idx: its index in the epoch.
        """

    def after_backward(self) -> None:
        """Called after each backward of the loss."""

    def fail(self, error: BaseException) -> None:
        """Called when an exception ends the run, while the hooks are still registered."""

    def end_batch(self, trainer: Trainer, stage: str) -> None:
        """Called after a batch of any stage; the hooks are already removed."""

    @property
    def has_requests(self) -> bool:
        """Whether consumers have requests that are to be fulfilled at the end of a step."""
        return False

    def end_step(self, trainer: Trainer, step: int) -> None:
        """Called when a training step has ended and was perhaps published; the hooks are already removed."""

    def end_epoch(self, trainer: Trainer) -> None:
        """Called after an epoch of training, whose steps are published."""

    def end_training(self, trainer: Trainer) -> None:
        """Called after the last batch of a fit, whose steps are published."""

    def end_stage(self, trainer: Trainer, stage: str) -> None:
        """Called when a run of a stage other than `train` has ended and was published: one validation, for example."""

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of the fit under way; empty if there is none."""
        return {}

    def before_checkpoint(self) -> None:
        """Called when a checkpoint of the fit under way is saved, before `state`."""

    def before_leaving(self, error: BaseException | None) -> None:
        """Called before the callback leaves its run, whose event files are open; its steps are published.

        Args:
            error: what ends the run; None after a normal end.
        """

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue the fit under way from a checkpoint, in which the state is empty if there was no such callback.

        Raises:
            ValueError: the state is damaged; nothing is then changed.
        """

    @contextmanager
    def starting_again(self, what: str = "its state") -> Iterator[None]:
        """If a state in a checkpoint is damaged, warn once: nothing of it is taken over, so that all of it starts again.

        Args:
            what: the state, for the warning.
        """
        try:
            yield
        except ValueError as error:
            name = self.label or f"{type(self.owner).__name__}: "
            warnings.warn(f"{name}the checkpoint is damaged, and {what} starts again: {error}", stacklevel=4)

    def close(self, error: BaseException | None) -> None:
        """Close the consumers and forget the run, whose hooks are removed; a second call does nothing.

        Args:
            error: what ended the run; None after a normal end.
        """
        publisher, self.publisher, self.run = self.publisher, None, None
        if publisher is not None:
            publisher.close(error)
