"""Callbacks that attach other packages to a training, each as its own documentation does, and say what it said.

They import these packages when a fit begins, so that `make test` needs none of them. `finish` returns one line for each kind of
statement: the package's own name of it, its severity, how often it was said, the first and last step, and names of layers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from lightning.pytorch import Callback

PLACES = 5
"""The most names of layers that are kept of one kind of statement."""


class Torchmortem(Callback):
    """Attached as its README shows: `Autopsy(model, optimizer)` around the loop, and `step(loss=loss.item())` after each step.

    `step` is called where an optimizer has stepped in the batch. The sampling is the package's default, "balanced".
    """

    name: ClassVar[str] = "torchmortem"
    package: ClassVar[str] = "torchmortem"

    def __init__(self) -> None:
        self.autopsy: Any = None
        self.failures: list[str] = []
        self._steps = 0
        self._loss: Any = None

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        from torchmortem import Autopsy

        self.autopsy = Autopsy(pl_module, optimizer=trainer.optimizers[0])
        self.autopsy.attach()

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        self._loss = loss.detach()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == self._steps:
            return
        self._steps = trainer.global_step
        # With accumulation the loss of the backward call is divided by the number of batches, and that of the outputs is not.
        loss = outputs["loss"] if isinstance(outputs, Mapping) and "loss" in outputs else self._loss
        self.autopsy.step(loss=None if loss is None else loss.item())

    def finish(self, is_complete: bool) -> list[list[Any]]:
        """Run the analysis, which leaving the `with` of its README does, and return what it says."""
        if self.autopsy is None:
            return []
        handler = _Failures(self.failures)
        logging.getLogger("torchmortem").addHandler(handler)
        try:
            self.autopsy.detach(is_complete=is_complete)
        finally:
            logging.getLogger("torchmortem").removeHandler(handler)
        report = self.autopsy.get_report()
        return grouped(
            # A title ends with the name of a layer where it is about one: "Dead units in encoder.1".
            (each.title.split(" in ")[0], each.severity.name.lower(), *each.step_range, each.affected_layers)
            for each in report.findings
        )


class TorchAudit(Callback):
    """Attached as `examples/demo_lightning.py` of its repository does: a callback around an `Auditor` of every step.

    Two things differ from the example. Each batch begins with the start of the forward phase, as in `Auditor.forward`, so that
    calls of validation are not counted. The check after the step hangs on the optimizer, since Lightning does not call the hook
    `on_after_optimizer_step` of the example.
    """

    name: ClassVar[str] = "torch-audit"
    package: ClassVar[str] = "torch-audit"

    def __init__(self) -> None:
        self.auditor: Any = None
        self.failures: list[str] = []
        self._batch: Any = None
        self._handles: list[Any] = []

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        from torch_audit import Auditor

        self.auditor = Auditor(pl_module, optimizer=trainer.optimizers[0], every_n_steps=1)
        self.auditor.attach()
        self.auditor.audit_static(step=trainer.global_step)
        self.auditor.audit_init(step=trainer.global_step)
        for optimizer in trainer.optimizers:
            self._handles.append(optimizer.register_step_post_hook(lambda *_: self._audit("optimizer")))

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.auditor.step, self._batch = trainer.global_step, batch
        self.auditor._call_phase_start(self._context("forward"))
        self.auditor.audit_data(batch, step=self.auditor.step)

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        self._audit("backward")

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        from torch_audit.validators.builtin.data import DataValidator

        self._audit("forward", [each for each in self.auditor.validators if not isinstance(each, DataValidator)])

    def finish(self, is_complete: bool) -> list[list[Any]]:
        """Take the hooks off, and return all findings."""
        if self.auditor is None:
            return []
        for handle in self._handles:
            handle.remove()
        self.auditor.detach()
        findings = self.auditor.finish().findings
        # TA000 says that one of its own checks raised, and nothing about the training.
        self.failures += sorted({each.message for each in findings if each.rule_id == "TA000"})
        rules = self.auditor.runner.rules_map
        return grouped(
            (
                f"{each.rule_id} {rules[each.rule_id].title}",
                each.severity.value.lower(),
                each.step,
                each.step,
                [place for place in (each.module_path or each.entity,) if place],
            )
            for each in findings
            if each.rule_id != "TA000"
        )

    def _audit(self, phase: str, validators: Any = None) -> None:
        self.auditor.runner.run_step(self._context(phase), validators=validators)

    def _context(self, phase: str) -> Any:
        from torch_audit import Phase

        return self.auditor._make_context(Phase(phase), step=self.auditor.step, batch=self._batch)


class Alone(Callback):
    """This package for the same table: `HealthMonitor()` alone."""

    name: ClassVar[str] = "HealthMonitor alone"
    package: ClassVar[str] = "lightning-hooks"

    def __init__(self) -> None:
        from lightning_hooks import HealthMonitor

        self.failures: list[str] = []
        self.health = HealthMonitor()
        self.others: list[Callback] = [self.health]

    def finish(self, is_complete: bool) -> list[list[Any]]:
        """Return all findings."""
        return grouped(
            (each.rule, str(each.severity), each.first_step, each.last_step, [row for row in each.rows if row])
            for each in self.health.findings
        )


class Beside(Alone):
    """This package with `StatsMonitor()`, which measures every row at each step, and `HealthMonitor()`."""

    name: ClassVar[str] = "HealthMonitor beside StatsMonitor"

    def __init__(self) -> None:
        from lightning_hooks import StatsMonitor

        super().__init__()
        self.others.insert(0, StatsMonitor(loggers=[]))


PEERS: tuple[type[Any], ...] = (Torchmortem, TorchAudit, Alone, Beside)


class _Failures(logging.Handler):
    """Keeps the messages of errors: torchmortem logs a detector that raised."""

    def __init__(self, messages: list[str]) -> None:
        super().__init__(logging.ERROR)
        self.messages = messages

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        self.messages.append(f"{record.getMessage()}: {type(error).__name__}: {error}" if error else record.getMessage())


def grouped(findings: Iterable[tuple[str, str, int, int, list[str]]]) -> list[list[Any]]:
    """One line for each kind and severity: kind, severity, how often it was said, first and last step, some of its places."""
    lines: dict[tuple[str, str], list[Any]] = {}
    for kind, severity, first, last, places in findings:
        line = lines.setdefault((kind, severity), [kind, severity, 0, first, last, []])
        line[2] += 1
        line[3], line[4] = min(line[3], first), max(line[4], last)
        line[5] += [place for place in places if place not in line[5]][: PLACES - len(line[5])]
    return [lines[key] for key in sorted(lines)]
