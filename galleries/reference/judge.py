"""Trains the runs of a pair, compares them live and from the event file, and judges what was said."""

from __future__ import annotations

import io
import warnings
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer

from galleries.reference.pairs import GOOD, STEPS, Made, Pair
from lightning_hooks import HealthMonitor
from lightning_hooks.health import Finding, Severity
from lightning_hooks.health.reference.rules import REFERENCE_RULES

WITHIN = 20
"""The steps after the onset within which a change has to be named."""


@dataclass(frozen=True)
class Verdict:
    """What was said of one pair.

    Args:
        pair: the pair.
        seed: of the good run; the changed run has another.
        told: the findings of the rules that compare, above information, each with the step at which it was told.
        findings: the same as they stand at the end.
    """

    pair: Pair
    seed: int
    told: tuple[tuple[Finding, int], ...]
    findings: tuple[Finding, ...]

    @property
    def delay(self) -> int | None:
        """The steps from the onset until the change was named at its row; None if it never was."""
        named = [
            step
            for finding, step in self.told
            if finding.rule == self.pair.rule and finding.rows[0] in self.pair.rows and step >= self.pair.onset
        ]
        return min(named, default=None) if not named else min(named) - self.pair.onset

    @property
    def is_right(self) -> bool:
        """Whether the change was named in time; or, where only the seed differs, whether nothing was said."""
        return not self.told if not self.pair.rule else self.delay is not None and self.delay <= WITHIN


def good_run(name: str, seed: int, folder: Path, resumed_at: int = 0) -> Path:
    """Train a good run; returns the folder of its event file."""
    fit(lambda: GOOD[name](seed), HealthMonitor(logdir=folder), folder, resumed_at)
    return run_in(folder)


def run_in(folder: Path) -> Path:
    """The folder of the event files below a folder, of which there is one."""
    (found,) = {path.parent for path in folder.rglob("events.out.tfevents.*")}
    return found


def judge(pair: Pair, seed: int, reference: Path, folder: Path) -> Verdict:
    """Train the changed run of a pair with another seed, and compare it with the good one while it trains."""
    told: list[tuple[Finding, int]] = []

    def note(finding: Finding) -> None:
        assert monitor._job.reporter is not None
        told.append((finding, monitor._job.reporter.diagnosis.evidence.step))

    monitor = HealthMonitor(
        reference=reference, logdir=folder, actions={severity.value: {"call": note} for severity in Severity}
    )
    fit(lambda: pair.changed(seed + 100), monitor, folder, pair.resumed_at)
    return Verdict(
        pair,
        seed,
        tuple((finding, step) for finding, step in told if _counts(finding)),
        tuple(filter(_counts, monitor.findings)),
    )


def _counts(finding: Finding) -> bool:
    return finding.rule in REFERENCE_RULES and finding.severity is not Severity.INFO


def fit(make: Any, monitor: HealthMonitor, folder: Path, resumed_at: int = 0) -> None:
    """Train; with `resumed_at`, the fit ends there and another Trainer resumes it from a checkpoint."""
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        checkpoint = None
        if resumed_at:
            made = make()
            trainer = _trainer(made, monitor, folder, resumed_at)
            trainer.fit(made.module, made.loader, made.val_loader)
            checkpoint = folder / "resumed.ckpt"
            trainer.save_checkpoint(checkpoint)
        made = make()
        _trainer(made, monitor, folder, STEPS).fit(
            made.module, made.loader, made.val_loader, ckpt_path=checkpoint, weights_only=False
        )


def _trainer(made: Made, monitor: HealthMonitor, folder: Path, steps: int) -> Trainer:
    options: dict[str, Any] = {
        "max_steps": steps,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "accelerator": "cpu",
        "devices": made.ranks,
        "default_root_dir": folder,
        "callbacks": [monitor],
    }
    return Trainer(**{**options, **made.trainer})
