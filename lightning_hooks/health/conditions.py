"""What the table of causes asks of the evidence at the last step, beyond findings."""

from __future__ import annotations

from typing import Final

import numpy as np

from lightning_hooks.health.chance import ONE_HALF, chance_reached, doubt_of, late_losses
from lightning_hooks.health.evidence import Evidence
from lightning_hooks.health.roles import WEIGHTED, is_weight, roles_of, without_parametrizations
from lightning_hooks.health.rules.activations import SaturatedActivation, slopes_of
from lightning_hooks.health.steps_before import BEFORE, has_stepped_too_far, track_of
from lightning_hooks.health.usage import frozen_and_held

_MOVES: Final = 3e-4
"""The share of a weight that a step must change if small steps are not to explain a loss: a third of the usual one."""
_EXACT: Final = 0.01
"""The largest doubt, as a share of the loss at chance, with which a loss is exactly there."""
_NO_SLOPE: Final = 1e-6
"""The mean slope of an activation, as a share of the largest one, below which hardly any gradient passes it."""


def is_at_chance(evidence: Evidence) -> bool:
    """Whether the loss is that of an output which is the same for every sample."""
    return chance_reached(evidence) is not None


def is_at_chance_by_large_steps(evidence: Evidence) -> bool:
    """Whether the loss is at chance, and is no loss of pairs that is exactly there.

    Too large steps throw the scores of pairs far apart, so that the loss is above that of one half. One that is exactly there
    is that of labels that say nothing.
    """
    chance = chance_reached(evidence)
    if chance is None:
        return False
    late = late_losses(evidence)
    doubt = doubt_of(late, chance.loss)
    is_exact = doubt < _EXACT * chance.loss and abs(float(np.median(late)) - chance.loss) <= doubt
    return not (is_exact and chance.of == ONE_HALF)


def is_at_chance_in_ordinary_steps(evidence: Evidence) -> bool:
    """Whether the loss is at chance although weights change, and not by a large share.

    If all weights hardly change, or have changed too much, that explains the loss.
    """
    ratio, roles = track_of(evidence, "update", "ratio"), roles_of(evidence)
    if ratio is None or roles is None or not is_at_chance(evidence):
        return False
    shares = np.where(roles.are_weights(ratio.names) & np.isfinite(ratio.values), ratio.values, 0.0)[-BEFORE:]
    moves = bool((shares > _MOVES).any())
    return moves and not has_stepped_too_far(evidence, evidence.step)


def began_saturated(evidence: Evidence) -> bool:
    """Whether the slopes of a sigmoid or tanh were small at the first step, before any update."""
    roles, track = roles_of(evidence), track_of(evidence, "output", "rms")
    rms, mean = (evidence.start("output", stat) if track_of(evidence, "output", stat) else None for stat in ("rms", "mean"))
    if roles is None or track is None or rms is None or mean is None:
        return False
    return bool((slopes_of(roles, track.names, rms, mean) < SaturatedActivation.at_start).any())


def _last(evidence: Evidence, tensor: str, stat: str) -> dict[str, float]:
    """The last measurement of each row, by its name; empty if the statistic is not collected."""
    track = track_of(evidence, tensor, stat)
    if track is None:
        return {}
    measured = ~np.isnan(track.values)
    last = len(measured) - 1 - measured[::-1].argmax(axis=0)
    found = track.values[last, np.arange(len(last))]
    return {name: value for name, value in zip(track.names, found.tolist(), strict=True) if not np.isnan(value)}


def has_frozen_embedding_alone(evidence: Evidence) -> bool:
    """Whether all parameters that are frozen, though an optimizer holds them, are those of embeddings."""
    roles, structure, facts = roles_of(evidence), evidence.structure, evidence.facts
    if roles is None or structure is None or facts is None:
        return False
    names = tuple(frozen_and_held(structure, facts))
    return bool(names) and all(roles.role(owner) == "embedding" for owner in roles.owners(names))


def has_weights_of_zeros(evidence: Evidence) -> bool:
    """Whether a matrix began at zero and still is."""
    track, structure = track_of(evidence, "param", "norm"), evidence.structure
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


def has_float16_weights(evidence: Evidence) -> bool:
    """Whether an optimizer steps with matrices in float16, of whose digits a usual step may change none."""
    structure = evidence.structure
    return structure is not None and any(each.dtype == "float16" and is_weight(each.shape) for each in structure.parameters)


def has_input_of_zeros(evidence: Evidence) -> bool:
    """Whether the first module in order of execution gets zeros only."""
    inputs = _last(evidence, "input", "zero_fraction")
    order = without_parametrizations(evidence.order)
    return bool(order) and inputs.get(order[0]) == 1


def has_gradients_in_backward(evidence: Evidence) -> bool:
    """Whether a gradient other than 0 reaches the output of a layer with parameters, and not only that of the last of several.

    Code behind the last layer may end the gradient there, such as an activation that is a hook.
    """
    structure = evidence.structure
    layers = {each.module for each in structure.parameters} if structure is not None else set()
    gradients = _last(evidence, "output_grad", "abs_max")
    known = [name for name in gradients if name in layers]
    last = next((name for name in reversed(evidence.order) if name in known), "")
    before = [name for name in known if name != last]
    return any(gradients[name] > 0 for name in before or known)


def has_activation_of_zeros(evidence: Evidence) -> bool:
    """Whether an activation gives zeros only."""
    roles = roles_of(evidence)
    outputs = _last(evidence, "output", "zero_fraction")
    return roles is not None and any(zeros == 1 and roles.role(name) == "activation" for name, zeros in outputs.items())


def has_dead_activation(evidence: Evidence) -> bool:
    """Whether an activation gives zeros only, and no weight is zero as a whole, which would make zeros of everything."""
    return has_activation_of_zeros(evidence) and not has_weights_of_zeros(evidence)


def shut_layers(evidence: Evidence) -> list[str]:
    """The layers with weights whose outputs are all below 0 and get a gradient of exactly 0: a ReLU behind them is shut.

    They were so at the first step. A layer that is shut later has another cause, such as a step that was too large.
    """
    roles, track = roles_of(evidence), track_of(evidence, "output", "max")
    first = None if track is None else evidence.start("output", "max")
    largest, gradients = _last(evidence, "output", "max"), _last(evidence, "output_grad", "abs_max")
    if roles is None or track is None or first is None:
        return []
    began = dict(zip(track.names, (first < 0).tolist(), strict=True))
    are_shut = {name for name, value in largest.items() if value < 0 and began.get(name) and gradients.get(name) == 0}
    return [name for name in evidence.order if name in are_shut and roles.role(name) in WEIGHTED]


def has_shut_layer(evidence: Evidence) -> bool:
    """Whether all outputs of a layer have been below 0 since the first step, and no gradient reaches them."""
    return bool(shut_layers(evidence))


def said_of_shut_layers(evidence: Evidence, begin: int) -> str:
    """A sentence on the layers whose outputs are all below 0; empty if there are none.

    Args:
        evidence: of the run.
        begin: the first step of the findings, which does not matter.
    """
    names = shut_layers(evidence)
    largest = _last(evidence, "output", "max")
    return f" The largest output of {names[0]} is {largest[names[0]]:.3g}." if names else ""


def has_activation_without_slope(evidence: Evidence) -> bool:
    """Whether every output of a sigmoid or tanh lies where the slope is 0, so that no gradient passes it."""
    roles = roles_of(evidence)
    rms, mean = _last(evidence, "output", "rms"), _last(evidence, "output", "mean")
    if roles is None:
        return False
    names = tuple(name for name in rms if name in mean)
    slopes = slopes_of(roles, names, np.array([rms[name] for name in names]), np.array([mean[name] for name in names]))
    return bool((slopes < _NO_SLOPE).any())


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


def has_no_module_that_gives_zeros(evidence: Evidence) -> bool:
    """Whether zeros that a layer reads come from the data, as far as the modules in front of it show."""
    return roles_of(evidence) is not None and not has_module_that_gives_zeros(evidence)


def has_modules_in_evaluation(evidence: Evidence) -> bool:
    """Whether a module is in evaluation mode at the last step."""
    return evidence.facts is not None and bool(evidence.facts.evaluating)


def has_swapped_betas(evidence: Evidence) -> bool:
    """Whether the betas of an optimizer are so far the other way round that nobody means them."""
    return evidence.facts is not None and any(
        each.kind == "betas-swapped" and each.is_fact for each in evidence.facts.sightings
    )
