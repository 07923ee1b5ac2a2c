"""What the table of causes asks of the evidence beyond findings."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from lightning_hooks.health.chance import chance_reached
from lightning_hooks.health.evidence import LOSS, Evidence, Track
from lightning_hooks.health.harm import jump_of
from lightning_hooks.health.roles import Array, is_weight, medians, percent, roles_of, without_parametrizations
from lightning_hooks.health.rules.updates import UpdateTooSmall
from lightning_hooks.health.usage import rates_of

FIRST_STEPS: Final = 25
"""The steps of the start that are compared with later ones."""
FAR: Final = 0.5
"""A step that changes a weight by this share of it has gone too far; healthy trainings stay below a tenth after their start."""
_MULTIPLE: Final = 10.0
"""The share from which on it is told as a multiple."""
LARGE: Final = 0.1
"""The share of a weight with which TheDeepChecker's band of updates ends."""
LASTING: Final = 10
"""The number of steps: so many large ones in a row have gone too far, and a rate that rose so many ago is still to blame."""
RAISED: Final = 5.0
"""The multiple to which a learning rate must rise from one step to the next; schedules of healthy trainings rise by and by."""
USUAL: Final = 1e-3
"""The share of a weight that a step usually changes."""
_GROWN: Final = 10.0
"""A loss or gradient has grown if it is this multiple of its level before."""
BEFORE: Final = 30
"""The number of steps before the first finding in which a divergence is looked for."""


def has_diverged(evidence: Evidence, begin: int) -> bool:
    """Whether a training diverged before its findings began.

    The loss or the whole gradient had grown to ten times its level over more than one step, or a step had changed the median
    weight by half of it. An operation without a finite result, such as the logarithm of 0, comes after ordinary steps.

    Args:
        evidence: of the run.
        begin: the first step of the findings.
    """
    shares = _shares(evidence, begin)
    return bool((shares[-LASTING:, 1] > FAR).any()) or _growth(evidence, begin) != ""


def divergence(evidence: Evidence, begin: int) -> str:
    """What grew before the findings began, how large the steps were, and at which learning rate; empty if nothing is known.

    Args:
        evidence: of the run.
        begin: the first step of the findings.
    """
    shares, says = _shares(evidence, begin), _growth(evidence, begin)
    large = shares[shares[:, 1] > LARGE]
    # The first of the large steps tells the rate; later ones are what it has led to.
    step, share = large[0].tolist() if len(large) else (begin, 0.0)
    rate = max(rates_of(evidence.facts_at(int(step))), default=0.0)
    if len(large):
        of_rate = f" than {rate:.3g}" if rate > 0 else ""
        size = f"{percent(share)} of it" if share < _MULTIPLE else f"{share:.2g} times its size"
        says += (
            f" Step {int(step)} changed the median weight by {size}; about {percent(USUAL)} is usual, for "
            f"which the rate must be {share / USUAL:.2g} times smaller{of_rate}."
        )
    elif rate > 0:
        says += f" The learning rate is {rate:.3g}."
    return says


def _growth(evidence: Evidence, begin: int) -> str:
    """Which series had grown before a step, with its numbers; empty if none had."""
    for name, key in (("loss", LOSS), ("norm of the gradient", ("", "run/grad_norm"))):
        track = _track(evidence, *key)
        if track is None or not track.values.shape[1]:
            continue
        is_known = np.isfinite(track.values[:, 0]) & (track.steps < begin)
        values, steps = track.values[is_known, 0][-BEFORE:], track.steps[is_known][-BEFORE:]
        if len(values) < 3:
            continue
        sizes = np.abs(values)
        level = float(np.median(sizes[: max(len(sizes) // 2, 1)]))
        if sizes[-1] > _GROWN * level > 0 and sizes[-1] > sizes[-2] > level:
            # The first number may be an outlier, which is larger than the last one.
            low = int(np.flatnonzero(sizes <= level)[0])
            return f" The {name} grew from {values[low]:.3g} at step {steps[low]} to {values[-1]:.3g} at step {steps[-1]}."
    return ""


def _shares(evidence: Evidence, begin: int) -> Array:
    """The steps before a step, and by which share of itself each changed the median weight, float64 [steps, 2]."""
    track, roles = _track(evidence, "update", "ratio"), roles_of(evidence)
    if track is None:
        return np.empty((0, 2))
    weights = np.ones(len(track.names), dtype=np.bool_) if roles is None else roles.are_weights(track.names)
    middle = medians(np.where(weights & (track.values > 0) & np.isfinite(track.values), track.values, np.nan))
    is_known = np.isfinite(middle) & (track.steps < begin)
    return np.stack([track.steps[is_known].astype(np.float64), middle[is_known]], axis=1)[-BEFORE:]


def has_stepped_too_far(evidence: Evidence, begin: int) -> bool:
    """Whether an early step has changed most weights by half of them, or ten in a row before the findings by a tenth.

    Args:
        evidence: of the run.
        begin: the first step of the findings.
    """
    ratio = _track(evidence, "update", "ratio")
    ratio = None if ratio is None else evidence.of_rows(ratio)
    if ratio is None or not len(ratio.values):
        return False
    shares = np.where(np.isfinite(ratio.values), ratio.values, 0.0)
    if evidence.holds_start and np.median(shares[:FIRST_STEPS].max(axis=0)) > FAR:
        return True
    large = np.median(shares[ratio.steps <= begin], axis=1) > LARGE
    return bool(len(large) >= LASTING and sliding_window_view(large, LASTING).all(axis=1).any())


def is_at_chance(evidence: Evidence) -> bool:
    """Whether the loss is that of an output which is the same for every sample."""
    return chance_reached(evidence) is not None


def is_at_chance_in_ordinary_steps(evidence: Evidence) -> bool:
    """Whether the loss is at chance although weights change, and not by a large share.

    If all weights hardly change, or have changed too much, that explains the loss.
    """
    ratio, roles = _track(evidence, "update", "ratio"), roles_of(evidence)
    if ratio is None or roles is None or not is_at_chance(evidence):
        return False
    shares = np.where(roles.are_weights(ratio.names) & np.isfinite(ratio.values), ratio.values, 0.0)[-BEFORE:]
    moves = bool((shares > UpdateTooSmall.least * UpdateTooSmall.most_of_others).any())
    return moves and not has_stepped_too_far(evidence, evidence.step)


def has_jumped(evidence: Evidence, begin: int) -> bool:
    """Whether the loss jumps above all losses before where the findings began.

    Args:
        evidence: of the run.
        begin: the first step of the findings.
    """
    return bool(jump_of(evidence, begin))


def has_raised_rate(evidence: Evidence, begin: int) -> bool:
    """Whether the learning rate of a parameter group rose fivefold within a step, at most ten steps before the findings.

    Args:
        evidence: of the run.
        begin: the first step of the findings.
    """
    rates = [rates_of(evidence.facts_at(step)) for step in range(begin - LASTING - 1, begin + 1)]
    changes = (zip(before, after, strict=False) for before, after in pairwise(rates))
    return any(0 < before * RAISED <= after for change in changes for before, after in change)


def _track(evidence: Evidence, tensor: str, stat: str) -> Track | None:
    """The track of a statistic; None also if no rule of the run collects it."""
    return evidence.track(tensor, stat) if (tensor, stat) in evidence.needs else None


def _last(evidence: Evidence, tensor: str, stat: str) -> dict[str, float]:
    """The last measurement of each row, by its name; empty if the statistic is not collected."""
    track = _track(evidence, tensor, stat)
    if track is None:
        return {}
    measured = ~np.isnan(track.values)
    last = len(measured) - 1 - measured[::-1].argmax(axis=0)
    found = track.values[last, np.arange(len(last))]
    return {name: value for name, value in zip(track.names, found.tolist(), strict=True) if not np.isnan(value)}


def has_weights_of_zeros(evidence: Evidence) -> bool:
    """Whether a matrix began at zero and still is."""
    track, structure = _track(evidence, "param", "norm"), evidence.structure
    start = None if track is None else evidence.start("param", "norm")
    if track is None or start is None or structure is None:
        return False
    now = _last(evidence, "param", "norm")
    began = {name for name, norm in zip(track.names, start.tolist(), strict=True) if norm == 0}
    return any(is_weight(each.shape) and each.name in began and now.get(each.name) == 0 for each in structure.parameters)


def has_float16_without_gradient(evidence: Evidence) -> bool:
    """Whether parameters are float16, and the gradient of a matrix is exactly 0."""
    structure = evidence.structure
    if structure is None or all(each.dtype != "float16" for each in structure.parameters):
        return False
    gradients = _last(evidence, "grad", "abs_max")
    return any(is_weight(each.shape) and gradients.get(each.name) == 0 for each in structure.parameters)


def has_input_of_zeros(evidence: Evidence) -> bool:
    """Whether the first module in order of execution gets zeros only."""
    inputs = _last(evidence, "input", "zero_fraction")
    order = without_parametrizations(evidence.order)
    return bool(order) and inputs.get(order[0]) == 1


def has_gradients_in_backward(evidence: Evidence) -> bool:
    """Whether a gradient other than 0 reaches the output of a layer with parameters."""
    structure = evidence.structure
    layers = {each.module for each in structure.parameters} if structure is not None else set()
    return any(value > 0 for name, value in _last(evidence, "output_grad", "abs_max").items() if name in layers)


def has_activation_of_zeros(evidence: Evidence) -> bool:
    """Whether an activation gives zeros only."""
    roles = roles_of(evidence)
    outputs = _last(evidence, "output", "zero_fraction")
    return roles is not None and any(zeros == 1 and roles.role(name) == "activation" for name, zeros in outputs.items())


def has_dead_activation(evidence: Evidence) -> bool:
    """Whether an activation gives zeros only, and no weight is zero as a whole, which would make zeros of everything."""
    return has_activation_of_zeros(evidence) and not has_weights_of_zeros(evidence)


def has_module_that_gives_zeros(evidence: Evidence) -> bool:
    """Whether a module without weights, and no activation or dropout, gives zeros only for an input that is not zero."""
    roles = roles_of(evidence)
    if roles is None:
        return False
    inputs, outputs = _last(evidence, "input", "zero_fraction"), _last(evidence, "output", "zero_fraction")
    return any(
        zeros == 1 and inputs.get(name, 1.0) < 1 and roles.role(name) in ("norm", "other") and roles.weight(name) is None
        for name, zeros in outputs.items()
    )


def has_modules_in_evaluation(evidence: Evidence) -> bool:
    """Whether a module is in evaluation mode at the last step."""
    return evidence.facts is not None and bool(evidence.facts.evaluating)
