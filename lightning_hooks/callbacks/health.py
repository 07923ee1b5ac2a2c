"""`HealthMonitor`: says in words what is wrong with a training, while it runs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from lightning_hooks.callbacks import _driver as driver
from lightning_hooks.callbacks._base import HooksCallback
from lightning_hooks.callbacks._checks import Earlier, Setting, check_options, options_repr, refuse_setting
from lightning_hooks.callbacks._first_batch import Checked, FirstBatch
from lightning_hooks.callbacks._loggers import as_loggers
from lightning_hooks.callbacks._monitoring import Monitoring, MonitorOptions, Resolved
from lightning_hooks.callbacks._ours import Guest, OurCallback, our_callbacks
from lightning_hooks.callbacks._outlet import TrainerOutlet
from lightning_hooks.callbacks._replicas import compare_replicas
from lightning_hooks.callbacks._run import LightningRun, run_of
from lightning_hooks.callbacks._run_context import leaves_files
from lightning_hooks.callbacks._trainer import batch_number, current_step, in_fit, is_under_way
from lightning_hooks.callbacks.monitor import StatsMonitor
from lightning_hooks.checks.result import CheckReport
from lightning_hooks.engine.assembly import Assembled, Contribution
from lightning_hooks.engine.inspecting.good_runs import rules_of_reference
from lightning_hooks.engine.inspecting.left_out import LeftOut
from lightning_hooks.engine.inspecting.match_report import MatchLine
from lightning_hooks.engine.participants.shards import has_units
from lightning_hooks.errors import RuleError
from lightning_hooks.health.accepting import Accept, accepted_patterns, refuse_unknown_rules
from lightning_hooks.health.actions import Actions, without_addresses
from lightning_hooks.health.engine import Diagnosis
from lightning_hooks.health.finding import Cause, Finding
from lightning_hooks.health.reference.causes import CAUSES_WITH_REFERENCE
from lightning_hooks.health.reference.rules import REFERENCE_RULES
from lightning_hooks.health.reporter import Reporter
from lightning_hooks.health.rule import HealthRule
from lightning_hooks.health.rules import rules_by_name
from lightning_hooks.health.rules.reading import as_health_rules
from lightning_hooks.health.watching import fields_of_watch
from lightning_hooks.plan.plan import Plan
from lightning_hooks.records.limits import HISTOGRAM_EVERY_N_STEPS
from lightning_hooks.rules import Watch
from lightning_hooks.rules.fields import check_local
from lightning_hooks.rules.patterns import named_modules
from lightning_hooks.rules.prefix import ROOT
from lightning_hooks.rules.schedule import EveryN, every_n

if TYPE_CHECKING:
    from torch import nn

    from lightning_hooks.callbacks._lightning import LightningModule, Trainer
    from lightning_hooks.callbacks._run_context import TrainerContext


class HealthMonitor(HooksCallback):
    """Say what is wrong with a training: in which layer, since which step, why, and what to try.

    Findings appear in the terminal, in TensorBoard's Text tab, and in `findings.jsonl` beside the event file; `summary.json`
    says at the end which rules ran. Without a logger, `logdir` and `Trainer(default_root_dir=…)` no file is written. A healthy
    run prints one line at its end. Beside a `StatsMonitor` with the default rules, the health rules read its rows; otherwise
    the monitor watches what they need, and writes tables without scalars.

    Args:
        rules: which health rules to use; default all that are on. A mapping changes fields of default rules, or turns a rule
            off with False: `{"DeadUnits": {"patience": 30}, "LossSpike": False}`. A list uses only its entries: names, objects
            of rules, or mappings with `class_path` and `init_args`.
        accept: findings that are known and no problem: `DeadUnits/encoder.*`, or the name of a rule. `*` stands for any text.
            A path, in YAML `{file: accepted.txt}`, is a file with one of these in each line.
        reference: good runs to compare with, row by row and step by step: the folder of a run, a list of folders, or a file
            that `lightning-hooks baseline` has written. Its rules are added to `rules`. Default: none.
        actions: what to do about a new finding, by severity or by name of a rule: `log`, `warn`, `stop`, `checkpoint`, `raise`,
            `{"call": function}`, `{"notify": URL}`, `{"focus": steps}`, or a list of these. Default: `info` is logged,
            `warning` and `critical` warn.
        check_first_batch: whether to run the checks of `lightning_hooks.check` on the first batch of a fit, which then goes on
            as without them; or which checks to run, as of `check`. What warns or fails is a finding; `check_report` has all
            results. `accept` and `actions` take names of checks, too.
        every_n_steps: as of `StatsMonitor`; default 5. Beside a `StatsMonitor` its interval counts.
        prefix: the prefix of tags, if it watches itself; default `watch/health/`.
        loggers: as of `StatsMonitor`.
        logdir: as of `StatsMonitor`.
        on_error: as of `StatsMonitor`, default `warn`.

    Raises:
        RuleError: an unknown rule (also in `accept`), field, severity or action; at fit start also a second `HealthMonitor` of
            the Trainer.

    Example:
        >>> HealthMonitor(accept="DeadUnits/head", actions={"critical": "stop"})
        HealthMonitor(accept=['DeadUnits/head'], actions={'critical': 'stop'})
    """

    def __init__(
        self,
        rules: Mapping[str, Any] | Sequence[Any] | None = None,
        *,
        accept: Accept = None,
        actions: Mapping[str, Any] | None = None,
        reference: str | Sequence[str | os.PathLike[str]] | os.PathLike[str] | None = None,
        every_n_steps: int | Sequence[int] | Mapping[str, int] = 5,
        prefix: str = f"{ROOT}health/",
        loggers: str | Sequence[str] = "all",
        logdir: str | os.PathLike[str] | None = None,
        on_error: str = "warn",
        check_first_batch: bool | Mapping[str, Any] | Sequence[Any] = False,
    ) -> None:
        super().__init__()
        self.every_n_steps = every_n_steps
        self.schedule: EveryN = every_n(every_n_steps, "every_n_steps")
        check_options(prefix, on_error, None)
        self.prefix = prefix
        self.loggers = as_loggers(loggers)
        check_local("logdir", logdir, "give the Trainer a TensorBoardLogger for another")
        self.logdir = logdir
        self.on_error = on_error
        self.rules = rules
        self.reference = reference
        self._health_rules: list[HealthRule] = as_health_rules(rules, rules_of_reference(reference))
        self.accept = accepted_patterns(accept)
        self.check_first_batch = check_first_batch
        self._first_batch = FirstBatch(check_first_batch, self.accept, self._health_rules)
        own = [rule.name for rule in self._health_rules]
        names = dict.fromkeys([*rules_by_name(), *REFERENCE_RULES, *own, *self._first_batch.names])
        refuse_unknown_rules(self.accept, [*names])
        self.actions = actions
        self._actions = Actions.read(actions, [*own, *self._first_batch.names])
        self._reporter: Reporter | None = None
        self._requests: TrainerContext | None = None  # During a fit, it takes what actions request: stop, save.
        self._is_diagnosing = False
        self._writes = False  # whether the current run leaves files
        self._monitoring = Monitoring(self)  # for a Trainer without a monitor whose steps serve
        self._new_diagnosis()  # Refuse two rules with one name now, not when a fit begins.

    def __repr__(self) -> str:
        """The arguments that differ from their defaults."""
        # The address of a webhook is a secret, so this `repr` cannot be typed back in if `actions` has one.
        hidden = {"actions": without_addresses(self.actions)}
        return options_repr(self, HealthMonitor, hidden, accept=[], loggers=("all",))

    def __getstate__(self) -> dict[str, Any]:
        """A copy or a pickle is not attached to anything, and has found nothing."""
        copied = self._monitoring.for_copy()
        own = {"_reporter": None, "_requests": None, "_is_diagnosing": False, "_monitoring": copied}
        return {**super().__getstate__(), **own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """The copy owns its monitoring."""
        self.__dict__.update(state)
        self._monitoring.owner = self

    @override
    def _monitor_options(self) -> MonitorOptions:
        return MonitorOptions(
            self.schedule,
            histogram_every_n_steps=HISTOGRAM_EVERY_N_STEPS,
            on_error=self.on_error,
            only_tables=True,
            watches_loss_alone=any(rule.enabled for rule in self._health_rules),
        )

    @property
    def latest(self) -> dict[str, float]:
        """The statistics of the last step that it measured itself, by tag; empty beside a monitor whose steps serve."""
        driver.flush(self._current_run)
        return self._monitoring.latest()

    @property
    def findings(self) -> list[Finding]:
        """The findings of the current run, or of the last one, in the order in which they were found."""
        return [] if self._reporter is None else self._reporter.diagnosis.findings

    @property
    def check_report(self) -> CheckReport | None:
        """What the checks of the first batch said in the current fit, or in the last one; None if none ran on this rank."""
        return self._first_batch.report

    @property
    def causes(self) -> list[Cause]:
        """What most likely explains the findings."""
        return [] if self._reporter is None else self._reporter.diagnosis.causes

    def explain(self, rule: str, cause: Cause) -> bool:
        """Explain what a rule finds by a cause that another callback knows. Returns whether a fit is diagnosed now.

        Args:
            rule: the name of the rule.
            cause: what explains its findings.
        """
        if self._reporter is None or not self._is_diagnosing or rule not in self._reporter.diagnosis.rules:
            return False
        self._reporter.diagnosis.explain_by(rule, cause)
        return True

    @property
    def summary(self) -> dict[str, Any]:
        """What `summary.json` says: the rules that ran, those that could not and why, findings, and causes."""
        diagnosis = self._new_diagnosis() if self._reporter is None else self._reporter.diagnosis
        return diagnosis.summary()

    @override
    def guest_of(self, monitor: OurCallback, trainer: Trainer) -> Guest | None:
        if (is_under_way(trainer) and not in_fit(trainer)) or monitor is not self._host(trainer):
            return None
        rules = [Watch(**fields) for fields in fields_of_watch(self._health_rules, beside=True, has_units=_has_units(trainer))]
        return Guest(rules, partial(self._start_reporter, trainer))

    @override
    def _refuse_beside(self, callbacks: Sequence[OurCallback]) -> None:
        if next(each for each in callbacks if isinstance(each, HealthMonitor)) is not self:
            raise RuleError(
                "the Trainer has two HealthMonitors, which would tell each finding twice; keep one, with the rules=, accept= "
                "and actions= of both"
            )

    def _host(self, trainer: Trainer) -> StatsMonitor | None:
        """The monitor whose steps the rules read; None if there is none that watches the same rows as often."""
        for callback in our_callbacks(trainer):
            if not isinstance(callback, StatsMonitor) or callback.watch is not None:
                continue
            schedule = callback.schedule
            is_dense = schedule.steps is None and schedule.every <= self.schedule.every and schedule.last is None
            if is_dense and "train" in callback.stages:
                return callback
        return None

    def _new_diagnosis(self) -> Diagnosis:
        return Diagnosis(self._health_rules, self.accept, CAUSES_WITH_REFERENCE)

    def _start_reporter(self, trainer: Trainer, writer: Any, context: Any) -> Reporter:
        outlet, self._requests = TrainerOutlet(trainer, writer, context), context
        writes = not trainer.fast_dev_run and leaves_files(trainer, writer.loggers)  # type: ignore[attr-defined]
        self._writes = writes
        reporter = self._reporter = Reporter(self._new_diagnosis(), self._actions, outlet, writes=writes)
        self._is_diagnosing = in_fit(trainer)
        saved = self._saving.saved.pop("diagnosis", None)
        if saved is not None:
            self._continue_from(saved)
        return reporter

    def _continue_from(self, saved: Any) -> None:
        try:
            assert self._reporter is not None
            self._reporter.load_state_dict(saved)
        except (RuleError, KeyError, TypeError, ValueError) as error:
            self._warn_of_damage([f"the diagnosis ({error})"])

    @override
    def _refuse_setting(self, setting: Setting) -> None:
        refuse_setting(setting, self.stages)

    @override
    def _resolve(self, model: nn.Module, trainer: Trainer | None = None, earlier: Earlier | None = None) -> Resolved:
        if trainer is not None and self._host(trainer) is not None:
            return Resolved(Plan([], [], ()), {})
        listed = fields_of_watch(self._health_rules, from_start=True, has_units=_has_units(trainer))
        return self._monitoring.resolve(model, [Watch(**fields) for fields in listed], "the default watch")

    @override
    def _resolve_dry(self, model: nn.Module, trainer: Trainer) -> Resolved:
        # Pass the Trainer: beside a monitor whose steps serve, nothing is watched.
        return self._resolve(model, trainer)

    @override
    def _check_resolved(self, resolved: Resolved, setting: Setting, earlier: Earlier) -> Earlier:
        return self._monitoring.check(resolved, setting, earlier)

    @override
    def _lines(self, resolved: Resolved) -> list[MatchLine]:
        return self._monitoring.lines(resolved)

    @override
    def _left_out(self, model: nn.Module, resolved: Resolved) -> list[LeftOut]:
        return self._monitoring.left_out(model, resolved)

    @override
    def _contribute(self, trainer: Trainer, run: LightningRun, resolved: Resolved) -> Contribution | None:
        if self._host(trainer) is not None:
            return Contribution(type(self).__name__)
        return self._monitoring.contribute(trainer, run, resolved, [Guest((), partial(self._start_reporter, trainer))])

    @override
    def _assembled(self, trainer: Trainer, run: LightningRun, made: Assembled) -> None:
        self._monitoring.assembled(run, made)

    @override
    def _state(self) -> dict[str, Any]:
        driver.flush(self._current_run)
        state = self._monitoring.state_dict()
        return state if self._reporter is None else {**state, "diagnosis": self._reporter.state_dict()}

    @override
    def _load_state(self, state: dict[str, Any]) -> None:
        driver.flush(self._current_run)
        self._warn_of_damage(self._monitoring.load_state_dict(state))
        if "diagnosis" in state and self._reporter is not None:
            self._continue_from(state["diagnosis"])

    @property
    @override
    def _has_requests(self) -> bool:
        return self._monitoring.has_requests

    @override
    def _end_step(self, trainer: Trainer, step: int) -> None:
        self._monitoring.end_step(trainer)

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called when a fit begins: check its first batch, too."""
        self._first_batch.begin_fit()
        super().on_fit_start(trainer, pl_module)

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Called before a batch: check the first one, and install the hooks."""
        checked = self._first_batch.check(trainer, pl_module, batch, self._folder)
        if checked is not None:
            self._report_checks(trainer, checked)
        super().on_train_batch_start(trainer, pl_module, batch, batch_idx)

    def _report_checks(self, trainer: Trainer, checked: Checked) -> None:
        if self._reporter is None or not self._is_diagnosing:
            self._first_batch.tell(trainer)
            return
        self._reporter.add_checked(checked.findings, checked.judged, current_step(trainer))
        self._raise_if_asked()

    @property
    def _folder(self) -> Path | None:
        """The folder of the run; None if it has none, or nothing is to be written."""
        return None if self._requests is None or not self._writes else self._requests.folder

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Called after a batch: end a step, compare replicas, and raise if an action says so."""
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
        if self._current_run is not None and self._current_run.has_ended_step:
            self._monitoring.fulfil(trainer)
        compare_replicas(trainer, pl_module, often=self.reference is not None)
        self._raise_if_asked()

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called after an epoch: do what actions ask for."""
        super().on_train_epoch_end(trainer, pl_module)
        self._monitoring.fulfil(trainer)

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called after the last batch: publish the last step, let all rules look, and do what actions ask for."""
        super().on_train_end(trainer, pl_module)
        self._monitoring.write_page(trainer, "train")
        self._monitoring.fulfil(trainer)
        if self._reporter is not None and self._requests is not None:
            self._reporter.finish()
            self._requests.fulfil(trainer)
        self._raise_if_asked()

    @override
    def on_validation_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any, **kwargs: Any) -> None:
        """Called after a batch of a validation: note which modules are in training mode."""
        super().on_validation_batch_end(trainer, pl_module, *args, **kwargs)
        if in_fit(trainer) and not trainer.sanity_checking and batch_number(trainer, "validate") == 0:
            run = run_of(trainer, pl_module)
            if run.is_live:
                run.validating = tuple(target.name for target in named_modules(pl_module) if target.value.training)

    def _raise_if_asked(self) -> None:
        if self._reporter is not None and self._reporter.error is not None:
            error, self._reporter.error = self._reporter.error, None
            raise error

    @override
    def _detach(self, error: BaseException | None = None) -> None:
        self._monitoring.close(super()._detach, error)
        self._requests, self._is_diagnosing = None, False

    @property
    @override
    def _rules(self) -> str:
        return "the health rules"


def _has_units(trainer: Trainer | None) -> bool:
    """Whether units can be measured, as far as is known before a run."""
    return trainer is None or not is_under_way(trainer) or has_units(trainer.lightning_module)
