"""`HealthMonitor`: says in words what is wrong with a training, while it runs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from lightning_hooks.callbacks._base import HooksCallback
from lightning_hooks.callbacks._checks import check_options, options_repr
from lightning_hooks.callbacks._chosen_loggers import as_loggers
from lightning_hooks.callbacks._diagnosing import Diagnosing
from lightning_hooks.callbacks._first_batch import FirstBatch
from lightning_hooks.callbacks._replicas import compare_replicas
from lightning_hooks.callbacks._run import run_of
from lightning_hooks.callbacks._trainer import batch_number, in_fit
from lightning_hooks.checks.result import CheckReport
from lightning_hooks.engine.inspecting.good_runs import rules_of_reference
from lightning_hooks.health.accepting import Accept, accepted_patterns, refuse_unknown_rules
from lightning_hooks.health.actions import Actions, without_addresses
from lightning_hooks.health.finding import Cause, Finding
from lightning_hooks.health.known_cause import KnownCause
from lightning_hooks.health.reference.rules import REFERENCE_RULES
from lightning_hooks.health.rule import HealthRule
from lightning_hooks.health.rules import rules_by_name
from lightning_hooks.health.rules.reading import as_health_rules
from lightning_hooks.recorder.record import FlightRecord
from lightning_hooks.records.disk_budget import AUTO, DiskSpec, bytes_of
from lightning_hooks.rules.fields import check_local
from lightning_hooks.rules.patterns import named_modules
from lightning_hooks.rules.prefix import ROOT
from lightning_hooks.rules.schedule import EveryN, every_n

if TYPE_CHECKING:
    from lightning_hooks.callbacks._lightning import LightningModule, Trainer


class HealthMonitor(HooksCallback):
    """Say what is wrong with a training: in which layer, since which step, why, and what to try.

    Findings appear in the terminal, in TensorBoard's Text tab, and in `findings.jsonl` beside the event file; `summary.json`
    says at the end which rules ran. Without a logger, `logdir` and `Trainer(default_root_dir=…)` no file is written. A healthy
    run prints one line at its end. Beside a `StatsMonitor` with the default rules, the health rules read its rows; otherwise
    the monitor watches what they need, and writes tables without scalars.

    It also notes every call of a layer at every step, as a `FlightRecorder` does. When a number stops being finite, the message
    names the layer that gave the first one, and `flight_record/` in the folder of the run has the calls before it. It keeps no
    batch and runs no step again: a `FlightRecorder` in the same list does both in its place.

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
        disk: as of `StatsMonitor`, whose budget it shares.

    Raises:
        RuleError: an unknown rule (also in `accept`), field, severity or action; at fit start also a second `HealthMonitor` of
            the Trainer.

    Example:
        >>> HealthMonitor(accept="DeadUnits/head", actions={"critical": "stop"})
        HealthMonitor(accept=['DeadUnits/head'], actions={'critical': 'stop'})
    """

    _job: Diagnosing

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
        disk: DiskSpec = AUTO,
        check_first_batch: bool | Mapping[str, Any] | Sequence[Any] = False,
    ) -> None:
        super().__init__(Diagnosing(self))
        self.every_n_steps = every_n_steps
        self.schedule: EveryN = every_n(every_n_steps, "every_n_steps")
        check_options(prefix, on_error, None)
        self.prefix = prefix
        self.loggers = as_loggers(loggers)
        check_local("logdir", logdir, "give the Trainer a TensorBoardLogger for another")
        self.logdir = logdir
        self.on_error = on_error
        bytes_of(disk)
        self.disk = disk
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
        self._job.new_diagnosis()  # Refuse two rules with one name now, not when a fit begins.

    def __repr__(self) -> str:
        """The arguments that differ from their defaults."""
        # The address of a webhook is a secret, so this `repr` cannot be typed back in if `actions` has one.
        hidden = {"actions": without_addresses(self.actions)}
        return options_repr(self, HealthMonitor, hidden, accept=[], loggers=("all",))

    @property
    def latest(self) -> dict[str, float]:
        """The statistics of the last step that it measured itself, by tag; empty beside a monitor whose steps serve."""
        return self._job.latest()

    @property
    def findings(self) -> list[Finding]:
        """The findings of the current run, or of the last one, in the order in which they were found."""
        return [] if self._job.reporter is None else self._job.reporter.diagnosis.findings

    @property
    def check_report(self) -> CheckReport | None:
        """What the checks of the first batch said in the current fit, or in the last one; None if none ran on this rank."""
        return self._first_batch.report

    @property
    def record(self) -> FlightRecord | None:
        """Which call gave the first number that is not finite, in the current fit or in the last one.

        None if all were finite, and beside a `FlightRecorder`, which has the record then.
        """
        return None if self._job.flight is None else self._job.flight.record

    @property
    def causes(self) -> list[Cause]:
        """What most likely explains the findings."""
        return [] if self._job.reporter is None else self._job.reporter.diagnosis.causes

    def explain(self, rule: str, cause: Cause) -> bool:
        """Explain what a rule finds by a cause that another callback knows. Returns whether a fit is diagnosed now.

        Args:
            rule: the name of the rule.
            cause: what explains its findings.
        """
        return self._job.explain(KnownCause(rule, cause))

    @property
    def summary(self) -> dict[str, Any]:
        """What `summary.json` says: the rules that ran, those that could not and why, findings, and causes."""
        diagnosis = self._job.new_diagnosis() if self._job.reporter is None else self._job.reporter.diagnosis
        return diagnosis.summary()

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called when a fit begins: check its first batch, too."""
        self._first_batch.begin_fit()
        super().on_fit_start(trainer, pl_module)

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Called before a batch: check the first one, and install the hooks."""
        checked = self._first_batch.check(trainer, pl_module, batch, self._job.folder)
        if checked is not None:
            if self._job.take_checks(trainer, checked):
                self._job.raise_if_asked()
            else:
                self._first_batch.show(trainer)
        super().on_train_batch_start(trainer, pl_module, batch, batch_idx)

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Called after a batch: end a step, compare replicas, and raise if an action says so."""
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
        compare_replicas(trainer, pl_module, often=self.reference is not None)
        self._job.raise_if_asked()

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called after the last batch: publish the last step, let all rules look, and do what actions ask for."""
        super().on_train_end(trainer, pl_module)
        self._job.raise_if_asked()

    @override
    def on_validation_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any, **kwargs: Any) -> None:
        """Called after a batch of a validation: note which modules are in training mode."""
        super().on_validation_batch_end(trainer, pl_module, *args, **kwargs)
        if in_fit(trainer) and not trainer.sanity_checking and batch_number(trainer, "validate") == 0:
            run = run_of(trainer, pl_module)
            if run.is_live:
                run.facts.validating = tuple(target.name for target in named_modules(pl_module) if target.value.training)
