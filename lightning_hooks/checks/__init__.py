"""Checks of a training on one batch, before the run."""

from lightning_hooks.checks.check import Check
from lightning_hooks.checks.result import CheckReport, CheckResult

__all__ = ["Check", "CheckReport", "CheckResult"]
