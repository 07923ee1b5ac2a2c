"""The callbacks of this package in a Trainer: which they are, and what they match."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

from torch import nn

from lightning_hooks.callbacks._checks import Earlier, setting_of
from lightning_hooks.callbacks._job import Job
from lightning_hooks.callbacks._trainer import all_callbacks, is_running
from lightning_hooks.callbacks._trainer_type import undeclared
from lightning_hooks.engine.inspecting.match_report import Match

if TYPE_CHECKING:
    from lightning_hooks.callbacks._base import HooksCallback
    from lightning_hooks.callbacks._lightning import Trainer


def our_callbacks(trainer: Trainer) -> list[HooksCallback]:
    """The callbacks of this package in a Trainer, in order.

    Lightning adds callbacks from the environment variable to the list that the user gives. If the user gives the same list to a
    second Trainer, it also holds those of the first Trainer. Only those of the second Trainer, which come last, are returned.
    """
    with_job = (callback for callback in all_callbacks(trainer) if isinstance(getattr(callback, "_job", None), Job))
    ours = [cast("HooksCallback", callback) for callback in with_job]
    marks = [callback.environment for callback in ours if callback.environment is not None]
    return [callback for callback in ours if callback.environment is None or callback.environment == marks[-1]]


def is_in_use(callback: HooksCallback, trainer: Trainer) -> bool:
    """Whether a run of another Trainer, which has not ended, uses a callback; if so, warn."""
    owner = None if callback._current_run is None else callback._current_run.trainer
    if owner is trainer or not is_running(owner):
        return False
    warnings.warn(
        f"{type(callback).__name__} is in use by a run of another Trainer that has not ended, and does nothing in this one; "
        "give each Trainer a callback of its own",
        stacklevel=2,
    )
    return True


def take_part_once(callback: HooksCallback, trainer: Trainer) -> None:
    """Remove repetitions of a callback from the list of a Trainer: Lightning would call it twice and change tensors twice."""
    listed = all_callbacks(trainer)
    positions = [i for i, each in enumerate(listed) if each is callback]
    if len(positions) > 1:
        undeclared(trainer).callbacks = [each for i, each in enumerate(listed) if i not in positions[1:]]
        warnings.warn(
            f"{type(callback).__name__} appears {len(positions)} times in the callbacks of the Trainer; it acts once",
            stacklevel=2,
        )


def matched(trainer: Trainer, model: nn.Module) -> Iterator[tuple[HooksCallback, Match]]:
    """Yield each callback of a Trainer with what it would match in a fit; then run the checks of the fit.

    Args:
        trainer: a Trainer without a run.
        model: the root module.

    Raises:
        RuleError: the errors that a fit would raise, also if each callback is valid alone.
        UnsupportedError: the errors that a fit would raise.
    """
    jobs: list[tuple[Job[Any, Any], Any]] = []
    for callback in our_callbacks(trainer):
        job = callback._job
        with job.naming_origin():
            resolved = job.resolve(model, trainer)
            report = Match(job.lines(resolved), job.left_out(model, resolved))
        jobs.append((job, resolved))
        yield callback, report
    setting, earlier = setting_of(trainer, model), Earlier()
    for job, resolved in jobs:
        if job.acts_in_fit:
            with job.naming_origin():
                job.refuse_beside(our_callbacks(trainer))
                job.refuse_setting(setting)
                earlier = job.check(resolved, setting, earlier)
