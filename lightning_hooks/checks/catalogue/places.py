"""Whether an output depends on the place of its sample in the batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor

from lightning_hooks.checks.batch import changed_copy
from lightning_hooks.checks.errors import StepError
from lightning_hooks.checks.record import Call
from lightning_hooks.checks.trial import Trial, outputs_of
from lightning_hooks.engine.participants.facts import role_of
from lightning_hooks.nested.tensors import tensors_in

ROUNDING: Final = 1e-3
"""A difference as a share of the largest output that is none: half precision rounds so far."""


def place_shares(trial: Trial, size: int) -> Iterator[tuple[str, float]]:
    """How far the output of a sample at another place differs, as a share of the largest output, by the names of modules.

    The samples of each call are moved by one place, in evaluation mode. A call that draws random numbers tells nothing.

    Args:
        trial: whose first step is read.
        size: the number of samples of the batch.
    """
    for call in trial.step.calls:
        if role_of(call.module) == "loss" or not _has_samples(call, size):
            continue
        try:
            output, record = trial.evaluate(call, probes=("draws",))
            args, kwargs = changed_copy((call.args, dict(call.kwargs)), lambda _, tensor: _moved(tensor, size))
            moved, _ = trial.evaluate(replace(call, args=args, kwargs=kwargs))
        except StepError:
            continue
        if record.draws:
            continue
        pairs = zip(outputs_of(replace(call, output=output), size), outputs_of(replace(call, output=moved), size), strict=False)
        shares = [_difference(one.roll(1, 0), other) for one, other in pairs if not _is_of_pairs(one, size)]
        if shares:
            yield call.name, max(shares)


def _has_samples(call: Call, size: int) -> bool:
    """Whether all tensors of the arguments have the samples in their first dimension."""
    tensors = list(tensors_in((call.args, dict(call.kwargs))))
    others = [value for value in (*call.args, *call.kwargs.values()) if isinstance(value, list) and len(value) == size]
    return bool(tensors) and not others and all(each.dim() and each.shape[0] == size for each in tensors)


def _moved(tensor: Tensor, size: int) -> Any:
    return tensor.roll(1, 0) if tensor.dim() and tensor.shape[0] == size else tensor


def _is_of_pairs(output: Tensor, size: int) -> bool:
    return output.dim() == 2 and output.shape[1] % size == 0


def _difference(one: Tensor, other: Tensor) -> float:
    """The largest difference as a share of the largest number; 0 if a number is not finite."""
    if one.shape != other.shape or not bool(torch.isfinite(one).all() & torch.isfinite(other).all()):
        return 0.0
    largest = float(one.abs().max()) if one.numel() else 0.0
    return float((one - other).abs().max()) / largest if largest > 0 else 0.0
