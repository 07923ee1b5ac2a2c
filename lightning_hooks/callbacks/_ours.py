"""The base of every callback of this package without a run: its rules and checks. Also finds these callbacks in a Trainer."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from lightning_hooks.callbacks._checks import Earlier, Setting, setting_of
from lightning_hooks.callbacks._lightning import Callback
from lightning_hooks.callbacks._trainer import all_callbacks
from lightning_hooks.engine.inspecting.left_out import LeftOut
from lightning_hooks.engine.inspecting.match_report import Match, MatchLine
from lightning_hooks.errors import RuleError, UnsupportedError
from lightning_hooks.records.consumer import StepConsumer
from lightning_hooks.rules import Watch
from lightning_hooks.rules.prefix import ROOT

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
    """A callback of this package as far as it needs no run: its rules, what they match, and whether they are valid.

    Attributes:
        origin: the file and the key from which the callback was read, for messages; empty if it was created in Python.
        environment: a mark that the callbacks of one Trainer from the environment variable share; None for other callbacks.
        loggers: which loggers are written to.
        logdir: the folder for an event file of this package, if none of the loggers is a TensorBoard; None for none.
        prefix: the text before every tag that a logger shows.
        stages: the stages in which the callback acts.
    """

    origin: str = ""
    environment: str | None = None
    loggers: Sequence[str] = ("all",)
    logdir: str | os.PathLike[str] | None = None
    prefix: str = ROOT
    stages: Collection[str] = ("train",)

    def match(self, model: LightningModule) -> Match:
        """The dry run: what the rules match in a model.

        Args:
            model: the root module.

        Raises:
            RuleError: the errors that a fit would raise.
        """
        with self._naming_origin():
            resolved = self._resolve(model)
            self._check_resolved(resolved, Setting(), Earlier())
            return Match(self._lines(resolved), self._left_out(model, resolved))

    @property
    def _stages(self) -> Collection[str]:
        """The stages in which the callback acts: some of `train`, `validate`, `test`, `predict`."""
        return self.stages

    @property
    def _has_requests(self) -> bool:
        """Whether consumers of this callback have requests that are to be fulfilled at the end of a step."""
        return False

    def _end_step(self, trainer: Trainer, step: int) -> None:
        """Called when a training step has ended and was perhaps published; the hooks are already removed."""

    def _refuse_setting(self, setting: Setting) -> None:
        """Refuse a setting that the callback does not support with any model; called before ranks exchange anything."""

    def _refuse_beside(self, callbacks: Sequence[OurCallback]) -> None:
        """Refuse other callbacks of the same Trainer with which this one cannot run; called before anything is written.

        Args:
            callbacks: the callbacks of this package in the Trainer, in order.

        Raises:
            RuleError: there is such a callback.
        """

    def _resolve(self, model: Any, trainer: Trainer | None = None, earlier: Earlier | None = None) -> Any:
        """The rules resolved against a model, of a type that the subclass chooses.

        Args:
            model: the root module.
            trainer: the Trainer of the run that begins; None for a report without a run.
            earlier: what earlier callbacks do; None for nothing.

        Raises:
            RuleError: a rule is invalid in this model, or matches nothing.
        """
        raise NotImplementedError

    def _resolve_dry(self, model: Any, trainer: Trainer) -> Any:
        """The rules resolved as a fit of a Trainer would resolve them, without a run."""
        return self._resolve(model)

    def guest_of(self, monitor: OurCallback, trainer: Trainer) -> Guest | None:
        """What this callback asks of a monitor of the same Trainer; None if it has nothing to do with that monitor."""
        return None

    def _check_resolved(self, resolved: Any, setting: Setting, earlier: Earlier) -> Earlier:
        """Check the resolved rules, without changing anything: both `fit` and `match` call this method.

        Args:
            resolved: the result of `_resolve`.
            setting: how the run trains.
            earlier: what earlier callbacks do.

        Returns:
            What earlier callbacks and this one do.

        Raises:
            RuleError: the rules are not valid together with those of earlier callbacks.
            UnsupportedError: the rules cannot have a correct result in this setting.
        """
        return earlier

    def _lines(self, resolved: Any) -> list[MatchLine]:
        """What the rules match, for a report."""
        raise NotImplementedError

    def _left_out(self, model: Any, resolved: Any) -> list[LeftOut]:
        """What the rules leave out although their patterns match it, for a report."""
        return []

    @property
    def _acts_in_fit(self) -> bool:
        """Whether the callback takes part in a fit, which may include validations."""
        return not {"train", "validate"}.isdisjoint(self._stages)

    @property
    def _rules(self) -> str:
        """The rules by the names that messages use: `watch[0], watch[1]`."""
        raise NotImplementedError

    @property
    def _label(self) -> str:
        """The prefix of rules' names in messages: the file and the class; empty if the callback was created in Python."""
        return f"{self.origin}: {type(self).__name__}: " if self.origin else ""

    @contextmanager
    def _naming_origin(self) -> Iterator[None]:
        """Put the file of the callback in front of errors that do not name it."""
        try:
            yield
        except (RuleError, UnsupportedError) as error:
            if str(error).startswith(self._label):
                raise
            raise type(error)(f"{self._label}{error}") from error


def for_each_stage(method: str) -> tuple[Any, ...]:
    """Lightning's hooks that call a method with each stage other than `train`."""

    def hook_of(stage: str) -> Any:
        def hook(self: OurCallback, trainer: Trainer, pl_module: LightningModule, *args: Any, **kwargs: Any) -> None:
            getattr(self, method)(stage, trainer, pl_module, *args, **kwargs)

        return hook

    return tuple(map(hook_of, ("validate", "test", "predict")))


def our_callbacks(trainer: Trainer) -> list[OurCallback]:
    """The callbacks of this package in a Trainer, in order.

    Lightning adds callbacks from the environment variable to the list that the user gives. If the user gives the same list to a
    second Trainer, it also holds those of the first Trainer. Only those of the second Trainer, which come last, are returned.
    """
    ours = [callback for callback in all_callbacks(trainer) if isinstance(callback, OurCallback)]
    marks = [callback.environment for callback in ours if callback.environment is not None]
    return [callback for callback in ours if callback.environment is None or callback.environment == marks[-1]]


def take_part_once(callback: OurCallback, trainer: Trainer) -> None:
    """Remove repetitions of a callback from the list of a Trainer: Lightning would call it twice and change tensors twice."""
    untyped: Any = trainer
    positions = [i for i, each in enumerate(untyped.callbacks) if each is callback]
    if len(positions) > 1:
        untyped.callbacks = [each for i, each in enumerate(untyped.callbacks) if i not in positions[1:]]
        warnings.warn(
            f"{type(callback).__name__} appears {len(positions)} times in the callbacks of the Trainer; it acts once",
            stacklevel=2,
        )


def matched(trainer: Trainer, model: LightningModule) -> Iterator[tuple[OurCallback, Match]]:
    """Yield each callback of a Trainer with what it would match in a fit; then run the checks of the fit.

    Args:
        trainer: a Trainer without a run.
        model: the root module.

    Raises:
        RuleError: the errors that a fit would raise, also if each callback is valid alone.
        UnsupportedError: the errors that a fit would raise.
    """
    callbacks: list[tuple[OurCallback, Any]] = []
    for callback in our_callbacks(trainer):
        with callback._naming_origin():
            resolved = callback._resolve_dry(model, trainer)
            report = Match(callback._lines(resolved), callback._left_out(model, resolved))
        callbacks.append((callback, resolved))
        yield callback, report
    setting, earlier = setting_of(trainer, model), Earlier()
    for callback, resolved in callbacks:
        if callback._acts_in_fit:
            with callback._naming_origin():
                callback._refuse_beside(our_callbacks(trainer))
                callback._refuse_setting(setting)
                earlier = callback._check_resolved(resolved, setting, earlier)
