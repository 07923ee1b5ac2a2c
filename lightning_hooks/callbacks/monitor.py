"""`StatsMonitor`: log statistics of the tensors of every layer and parameter, at every step."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from lightning_hooks.callbacks._base import HooksCallback
from lightning_hooks.callbacks._checks import check_options, options_repr, refuse_idle_stages
from lightning_hooks.callbacks._chosen_loggers import as_loggers
from lightning_hooks.callbacks._watching import Watching
from lightning_hooks.errors import RuleError
from lightning_hooks.plan.defaults import DEFAULT_WATCH
from lightning_hooks.records.consumer import StepConsumer, as_consumers
from lightning_hooks.records.disk_budget import AUTO, DiskSpec, bytes_of
from lightning_hooks.records.limits import HISTOGRAM_EVERY_N_STEPS, MAX_HISTOGRAMS
from lightning_hooks.rules import Watch
from lightning_hooks.rules.fields import as_count, as_patterns, as_stages, check_local, check_path
from lightning_hooks.rules.prefix import ROOT
from lightning_hooks.rules.reading import as_rules
from lightning_hooks.rules.schedule import EveryN, every_n


class StatsMonitor(HooksCallback):
    """Watch named modules and parameters, and log statistics of their tensors.

    Without arguments: `output` and `output_grad` of every layer (a module that has no children or owns parameters), `param`,
    `grad` and `update` of every trainable parameter, with the default statistics, at every step.

    Args:
        watch: rules, or mappings with the fields of a rule; default as above.
        every_n_steps: the interval in steps, counted as in Lightning ((step + 1) % n == 0); or a list of steps; or a mapping
            with `first`, `every`, `last`. A rule's own value overrides it. Default 1.
        stages: any of `train`, `validate`, `test`, `predict`; default `train`. Outside training `input` and `output`
            are watched in every batch and merged exactly into one row per run, with tags `val_…`, `test_…`, `predict_…`;
            the sanity check before training is skipped.
        scalars: patterns of names that keep their own scalars when others are merged; default: none.
        max_scalars: the maximum number of scalars of rows, over all stages; above it, rows are merged along the module tree and
            statistics are skipped. The global numbers (`run/…`) are not counted. Default: without `watch`, at most 100 charts:
            the norm of gradients, the ratio of updates, the spread of outputs; with rules of your own, 500 of all they ask for.
        max_histograms: the same for TensorBoard's histograms, which are added up; the page has every row. Default 100.
        histogram_every_n_steps: the least number of steps between two histograms of a row in TensorBoard, and the interval at
            which rules without `stats` measure histograms (on a GPU only if Triton works there); default 50.
        prefix: the text before the tags of scalars, histograms and texts; default `watch/`, below which your own charts are not
            buried. `latest`, tables and step views never have it; of several monitors, `read_run` finds one by it.
        loggers: which loggers of the Trainer are written to: `all` (default), `tensorboard`, names of their classes, or a list
            of these; an empty list for none. A TensorBoard gets every watched step, another logger those at which Lightning
            logs (`log_every_n_steps`): the global numbers, and scalars of layers if you name its class here, or give `watch`,
            `scalars` or `max_scalars`.
        logdir: a folder of this machine for a TensorBoard run of this package, in a new folder `run_<n>`, if none of these
            loggers is a TensorBoard. Default: with `loggers="all"` the folder in which a logger of the Trainer keeps the files
            of the run, or else `lightning_hooks_logs` in the `default_root_dir`; without any logger, nothing is written.
        on_error: `raise` (default), or `warn`: if the monitor fails, stop watching, warn once and let training continue.
        max_overhead: the maximum share of the step time that watching may take, for example 0.05; on a GPU the share of the
            time of the host. Above it, `every_n_steps` and the rules' own intervals increase for the rest of the run, with
            one warning. Default: no limit.
        disk: how much the run may write of its steps, in megabytes (10**6 bytes), or as a text such as `256 MB` or `1.5 GB`.
            When most of it is used, tables, scalars and histograms are written for windows of steps, merged exactly; those
            scalars and histograms stay that a monitor with `watch`, `scalars` or `max_scalars`, or a logger named in `loggers`,
            asks for. The budget belongs to the run: give it once. None writes every step. Default: `auto`, 256 MB.
        consumers: your own `StepConsumer` objects, or mappings with `class_path` and `init_args`. Each gets a view of every
            watched step when the step ends, after the loggers. Default: none.
        report: a file, such as `report.html`, for the page with the data of the fit, written at its end; True for
            `report.html` beside the event file. All loggers of W&B, MLflow, Neptune and trackio get it as an artefact. It needs
            a TensorBoard logger, or `logdir`. Default: as True if one of these is written to, else none; False for none.

    Raises:
        RuleError: an invalid value; at fit start also a rule that matches nothing.

    Example:
        >>> StatsMonitor(watch=[Watch(params="*.weight", tensors="grad", stats="norm")], every_n_steps=10)
        StatsMonitor(watch=[Watch(params='*.weight', tensors=('grad',), stats=('norm',))], every_n_steps=10)
    """

    _job: Watching

    def __init__(
        self,
        watch: Sequence[Mapping[str, Any] | Watch] | None = None,
        *,
        every_n_steps: int | Sequence[int] | Mapping[str, int] = 1,
        stages: str | Sequence[str] = ("train",),
        scalars: str | Sequence[str] | None = None,
        max_scalars: int | None = None,
        max_histograms: int = MAX_HISTOGRAMS,
        histogram_every_n_steps: int = HISTOGRAM_EVERY_N_STEPS,
        prefix: str = ROOT,
        loggers: str | Sequence[str] = "all",
        logdir: str | os.PathLike[str] | None = None,
        on_error: str = "raise",
        max_overhead: float | None = None,
        disk: DiskSpec = AUTO,
        consumers: Sequence[Mapping[str, Any] | StepConsumer] | None = None,
        report: bool | str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__(Watching(self))
        self.watch = None if watch is None else as_rules(Watch, watch, "watch")
        if self.watch is not None and not self.watch:
            raise RuleError("watch is an empty list; give at least one rule, or omit it for the default ones")
        self.every_n_steps = every_n_steps
        self.schedule: EveryN = every_n(every_n_steps, "every_n_steps")
        self.stages = as_stages(stages)
        refuse_idle_stages(self.stages, self.watch or DEFAULT_WATCH)
        self.scalars = as_patterns("scalars", scalars)
        check_options(prefix, on_error, max_overhead)
        self.max_scalars = None if max_scalars is None else as_count("max_scalars", max_scalars)
        self.max_histograms = as_count("max_histograms", max_histograms)
        self.histogram_every_n_steps = as_count("histogram_every_n_steps", histogram_every_n_steps, 1)
        self.prefix = prefix
        self.loggers = as_loggers(loggers)
        check_local("logdir", logdir, "give the Trainer a TensorBoardLogger for another")
        self.logdir = logdir
        self.on_error = on_error
        self.max_overhead = max_overhead
        bytes_of(disk)
        self.disk = disk
        if report is not None and not isinstance(report, bool):
            check_path("report", report)
        self.report = report
        self.consumers = as_consumers(consumers)

    def __repr__(self) -> str:
        """The arguments that differ from their defaults."""
        return options_repr(self, StatsMonitor, scalars=[], consumers=[], loggers=("all",))

    @property
    def latest(self) -> dict[str, float]:
        """The statistics of the last logged step by tag: all measured rows, whatever `max_scalars` is; empty before the first.

        With other `stages`, also those of the last run of each. On CUDA it waits for the copy of the last step.
        """
        return self._job.latest()
