"""What the table of causes asks of first steps: whether gradients faded, and how float16 weights were lost."""

from __future__ import annotations

from typing import Final

import numpy as np

from lightning_hooks.health.evidence import Evidence
from lightning_hooks.health.roles import roles_of
from lightning_hooks.health.rules.gradients import VanishingGradient
from lightning_hooks.health.steps_before import track_of

_FADED: Final = 0.01
"""The share of the largest gradient below which one counts as faded."""


def has_faded_from_start(evidence: Evidence) -> bool:
    """Whether first gradients faded from layer to layer, to so small a share of the largest one as `VanishingGradient` tells.

    At least two weights must stand between the largest and the smallest gradient: a softmax of equal inputs, say, lets none
    through to the weights of its logits, while all others have an ordinary one.

    Args:
        evidence: of the run.
    """
    track, roles = track_of(evidence, "grad", "rms"), roles_of(evidence)
    first = None if track is None else evidence.start("grad", "rms")
    if track is None or roles is None or first is None:
        return False
    weights = roles.are_weights(track.names) & ~roles.have_role(roles.owners(track.names), ("embedding",))
    known = first[weights & np.isfinite(first) & (first > 0)]
    shares = known / known.max() if len(known) else known
    between = (shares >= VanishingGradient.least) & (shares < _FADED)
    return bool((shares < VanishingGradient.least).any()) and int(between.sum()) >= 2


def has_lost_float16_weights(evidence: Evidence, begin: int) -> bool:
    """Whether float16 weights were not finite when the findings began, although no gradient had been so before.

    Args:
        evidence: of the run.
        begin: the first step of the findings.
    """
    structure = evidence.structure
    params, grads = track_of(evidence, "param", "nonfinite"), track_of(evidence, "grad", "nonfinite")
    if structure is None or params is None or grads is None:
        return False
    halves = {each.name for each in structure.parameters if each.dtype == "float16"}
    are_halves = np.array([name in halves for name in params.names], dtype=np.bool_)
    lost = params.values[params.steps == begin][:, are_halves]
    return bool((lost > 0).any()) and not bool((grads.values[grads.steps < begin] > 0).any())
