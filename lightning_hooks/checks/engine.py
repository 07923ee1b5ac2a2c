"""Runs checks one after the other, each with a time limit, and restores everything after each."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from threading import RLock
from typing import Any, Final

import torch
from torch import nn

from lightning_hooks.checks.check import Check
from lightning_hooks.checks.errors import OutOfRangeError, OutOfTimeError, StepError, UnmeasuredError
from lightning_hooks.checks.probes import PROBES
from lightning_hooks.checks.result import CheckReport, CheckResult
from lightning_hooks.checks.trial import Trial
from lightning_hooks.engine.rerun.ranks import CommunicationError
from lightning_hooks.engine.rerun.training import Training
from lightning_hooks.errors import RuleError, did_you_mean, listed, shortened
from lightning_hooks.health.accepting import is_accepted
from lightning_hooks.health.finding import fingerprint_of
from lightning_hooks.snapshot.lending import UntouchableError
from lightning_hooks.tensor_kinds import first_line, is_sharded

TIME_LIMIT: Final = 60.0  # seconds
_ONE_AT_A_TIME: Final = RLock()
"""Held while checks run: generators, filters of warnings and the stance of the compiler belong to the process."""
_RUNS: Final = "StepRuns"
_NO_OPTIMIZER: Final = "no optimizer was given"


def run_checks(
    training: Training, batch: Any, checks: Sequence[Check], accept: Iterable[str] = (), time_limit: float = TIME_LIMIT
) -> CheckReport:
    """Run checks on a batch.

    Args:
        training: how the batch is trained.
        batch: any nested containers of tensors.
        checks: what to run, in order.
        accept: patterns of results that are no problem.
        time_limit: of each check in seconds; a check that takes longer is skipped.
    """
    reason = _why_not(training)
    if reason:
        return _all_skipped(training, checks, reason)
    with _ONE_AT_A_TIME:
        return _run(training, batch, checks, accept, time_limit)


def _run(training: Training, batch: Any, checks: Sequence[Check], accept: Iterable[str], time_limit: float) -> CheckReport:
    patterns = list(accept)
    notes = [*_notes_of_ranks(training), *_notes_of_compiled(training.model)]
    trial = Trial(training, batch, _registered(checks))
    if trial.unrestorable:
        return _all_skipped(training, checks, f"a step may use {listed(trial.unrestorable, 3)}, which cannot be restored")
    results = []
    try:
        trial.restore()
        for check in checks:
            began = time.monotonic()
            trial.deadline = began + time_limit
            result = _result(check, trial, time_limit)
            trial.restore()
            results.append(_accepted(replace(result, seconds=time.monotonic() - began), patterns))
    finally:
        trial.deadline = math.inf
        trial.end()
    return CheckReport(tuple(_without_settled(checks, results)), notes=tuple(notes))


def _without_settled(checks: Sequence[Check], results: Sequence[CheckResult]) -> Iterator[CheckResult]:
    """The results without the advice that another check has settled by a pass."""
    passed = {result.check for result in results if result.status == "pass"}
    for check, result in zip(checks, results, strict=True):
        settled = {step for step, name in check.settled_by.items() if name in passed}
        yield replace(result, next_steps=tuple(step for step in result.next_steps if step not in settled))


def _registered(checks: Sequence[Check]) -> list[str]:
    """The probes that the checks register, each once.

    Raises:
        RuleError: there is no such probe.
    """
    for check in checks:
        for name in check.probes:
            if name not in PROBES:
                raise RuleError(f"{check.name}.probes: there is no probe {name!r}{did_you_mean(name, PROBES)}")
    return list(dict.fromkeys(name for check in checks for name in check.probes))


def _all_skipped(training: Training, checks: Sequence[Check], reason: str) -> CheckReport:
    results = tuple(CheckResult(check.name, status="skip", message=reason) for check in checks)
    return CheckReport(results, notes=_notes_of_ranks(training))


def _result(check: Check, trial: Trial, time_limit: float) -> CheckResult:
    if "optimizer" in check.needs and not trial.optimizers:
        return check.skipped(_NO_OPTIMIZER)
    try:
        result = check.run(trial)
    except OutOfTimeError:
        return check.skipped(f"it takes longer than {time_limit:g} s")
    except OutOfRangeError as error:
        return check.skipped(f"{error.text}; see LabelsFitHead")
    except CommunicationError as error:
        return check.skipped(f"the step exchanges tensors with other ranks ({error}), which do not run the check")
    except UntouchableError as error:
        return check.skipped(str(error))
    except torch.OutOfMemoryError:
        return check.skipped("the memory of the device does not suffice beside a copy of the parameters")
    except StepError as error:
        return _of_failed_step(check, error)
    except UnmeasuredError as error:
        raise RuleError(f"{check.name} {error}") from None
    # One check that meets what it does not know must not hide the results of the others.
    except Exception as error:
        return check.skipped(f"it could not be judged: {type(error).__name__}: {shortened(first_line(error), 200)}")
    if not isinstance(result, CheckResult):
        raise TypeError(f"{check.name}.run must return self.passed(…), warned, failed or skipped, got {result!r}")
    return result


def _of_failed_step(check: Check, error: StepError) -> CheckResult:
    if isinstance(error.__cause__, torch.OutOfMemoryError):
        return check.skipped("the memory of the device does not suffice beside a copy of the parameters")
    if check.name == _RUNS and error.__cause__ is not None:
        return check.failed([""], str(error))
    return check.skipped(str(error))


def _accepted(result: CheckResult, patterns: Sequence[str]) -> CheckResult:
    """A result without the rows that a user accepts; it passes if none is left."""
    if result.status not in ("warn", "fail"):
        return result
    rows = tuple(row for row in result.rows or ("",) if not is_accepted(patterns, result.check, row))
    if rows == (result.rows or ("",)):
        return result
    if not rows:
        return replace(result, status="pass", message=f"accepted: {result.message}", next_steps=())
    return replace(result, rows=rows, fingerprint=fingerprint_of(result.check, rows))


def _why_not(training: Training) -> str:
    """Why nothing can be checked; empty if it can."""
    for name, parameter in training.model.named_parameters():
        if isinstance(parameter, nn.UninitializedParameter):
            return f"{name} has no shape before the first call; call the model once on a batch first"
        if is_sharded(parameter):
            return "parameters are sharded over ranks, and a check runs on one rank"
        if parameter.is_meta:
            return f"{name} is on the meta device and has no numbers"
    return training.refusal()


def _notes_of_ranks(training: Training) -> tuple[str, ...]:
    if training.world_size == 1:
        return ()
    return ("the first of several ranks ran the checks alone; those whose step exchanges tensors with others are skipped",)


def _notes_of_compiled(model: nn.Module) -> list[str]:
    compiled = any(
        hasattr(each, "_orig_mod") or getattr(each, "_compiled_call_impl", None) is not None for each in model.modules()
    )
    return ["compiled modules ran eagerly, so that faults of compiled code do not show"] if compiled else []
