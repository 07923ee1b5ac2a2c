"""The base of every callback of this package: its rules in a model, without a run. And those callbacks of a Trainer."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from lightning_hooks.callbacks._checks import Earlier, Setting, setting_of
from lightning_hooks.callbacks._lightning import Callback
from lightning_hooks.callbacks._trainer import all_callbacks
from lightning_hooks.engine.inspecting.match_report import Match, MatchLine
from lightning_hooks.records.consumer import StepConsumer
from lightning_hooks.rules import Watch

if TYPE_CHECKING:
    from lightning_hooks.callbacks._lightning import LightningModule, Trainer


class Guest(NamedTuple):
    """A callback that reads the steps of a monitor beside it.

    Args:
        rules: what the monitor has to watch besides its own rules.
        consumer: makes the consumer of its steps when the run begins; it is given the writer and the context of the monitor.
    """

    rules: Sequence[Watch]
    consumer: Callable[[Any, Any], StepConsumer]


class OurCallback(Callback):
    """What a callback of this package knows without a run: its rules, what they match, and whether they are valid.

    Attributes:
        origin: the file and the key in it that it was read from, for messages; empty for one made in Python.
        environment: a mark that the callbacks of one Trainer from the environment variable share; None for others.
        loggers: which loggers are written to.
        logdir: where an event file of our own is made if none of them is a TensorBoard.
        prefix: of every tag.
        stages: in which it acts.
    """

    origin: str = ""
    environment: str | None = None
    loggers: Sequence[str] = ("all",)
    logdir: str | os.PathLike[str] | None = None
    prefix: str = ""
    stages: Collection[str] = ("train",)

    def match(self, model: LightningModule) -> Match:
        """The dry run: what the rules match in a model.

        Args:
            model: the root module.

        Raises:
            RuleError: the errors that a fit would raise.
        """
        resolved = self._resolve(model)
        self._check_resolved(resolved, Setting(), Earlier())
        return Match(self._lines(resolved))

    @property
    def _stages(self) -> Collection[str]:
        """The stages in which it acts: of `train`, `validate`, `test`, `predict`."""
        return self.stages

    def _refuse_setting(self, setting: Setting) -> None:
        """Refuse how a run trains, whatever its model; called before ranks exchange anything."""

    def _resolve(self, model: Any, trainer: Trainer | None = None, earlier: Earlier | None = None) -> Any:
        """The rules resolved in a model; what that is, the subclass knows.

        Args:
            model: the root module.
            trainer: of the run that begins; None if only a report is wanted.
            earlier: what callbacks before this one do; None for nothing.

        Raises:
            RuleError: a rule is invalid in this model, or matches nothing.
        """
        raise NotImplementedError

    def guest_of(self, monitor: OurCallback, trainer: Trainer) -> Guest | None:
        """What this callback asks of a monitor of the same Trainer; None if it has nothing to do with that monitor."""
        return None

    def _check_resolved(self, resolved: Any, setting: Setting, earlier: Earlier) -> Earlier:
        """Check the resolved rules. It changes nothing: `fit` and `match` call it alike.

        Args:
            resolved: from `_resolve`.
            setting: how the run trains.
            earlier: what callbacks before this one do.

        Returns:
            What callbacks up to this one do.

        Raises:
            RuleError: the rules are not valid together with those of callbacks before.
            UnsupportedError: they cannot have a correct result in this setting.
        """
        return earlier

    def _lines(self, resolved: Any) -> list[MatchLine]:
        """What the rules match, for a report."""
        raise NotImplementedError

    @property
    def _acts_in_fit(self) -> bool:
        """Whether it takes part in a fit, of which a validation may be a part."""
        return not {"train", "validate"}.isdisjoint(self._stages)

    @property
    def _rules(self) -> str:
        """The rules by the names that messages use: `watch[0], watch[1]`."""
        raise NotImplementedError

    @property
    def _label(self) -> str:
        """What goes before the names of rules in messages: the file and the class; nothing for one made in Python."""
        return f"{self.origin}: {type(self).__name__}: " if self.origin else ""


def for_each_stage(method: str) -> tuple[Any, ...]:
    """Lightning's hooks that call a method with each stage other than `train`."""

    def hook_of(stage: str) -> Any:
        def hook(self: OurCallback, trainer: Trainer, pl_module: LightningModule, *args: Any, **kwargs: Any) -> None:
            getattr(self, method)(stage, trainer, pl_module, *args, **kwargs)

        return hook

    return tuple(map(hook_of, ("validate", "test", "predict")))


def our_callbacks(trainer: Trainer) -> list[OurCallback]:
    """The callbacks of this package in a trainer, in order.

    Lightning adds those from the environment to the list that the Trainer is given. A second Trainer with that list has
    those of the first too: only its own count, which come last.
    """
    ours = [callback for callback in all_callbacks(trainer) if isinstance(callback, OurCallback)]
    marks = [callback.environment for callback in ours if callback.environment is not None]
    return [callback for callback in ours if callback.environment is None or callback.environment == marks[-1]]


def take_part_once(callback: OurCallback, trainer: Trainer) -> None:
    """Leave a callback in the list of a trainer once: Lightning would call it twice, and what it changes would change twice."""
    here: Any = trainer
    places = [i for i, each in enumerate(here.callbacks) if each is callback]
    if len(places) > 1:
        here.callbacks = [each for i, each in enumerate(here.callbacks) if i not in places[1:]]
        warnings.warn(
            f"{type(callback).__name__} appears {len(places)} times in the callbacks of the Trainer; it acts once", stacklevel=2
        )


def matched(trainer: Trainer, model: LightningModule) -> Iterator[tuple[OurCallback, Match]]:
    """What a fit of the callbacks of a Trainer would match, one after the other; then the checks of the fit.

    Args:
        trainer: that has not begun.
        model: the root module.

    Raises:
        RuleError: the errors that a fit would raise, also where each callback is valid alone.
        UnsupportedError: likewise.
    """
    every: list[tuple[OurCallback, Any]] = []
    for callback in our_callbacks(trainer):
        every.append((callback, callback._resolve(model)))
        yield callback, Match(callback._lines(every[-1][1]))
    setting, earlier = setting_of(trainer, model), Earlier()
    for callback, resolved in every:
        if callback._acts_in_fit:
            callback._refuse_setting(setting)
            earlier = callback._check_resolved(resolved, setting, earlier)
