"""Heads whose first weights are too large, as those of an embedding that is the head too."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from lightning_hooks.health.evidence import Evidence
from lightning_hooks.health.layers import inputs_of, last_layer
from lightning_hooks.health.roles import Roles, roles_of, starts
from lightning_hooks.health.steps_before import track_of

_LARGE: Final = 2.0
"""The factor by which a head makes its inputs larger at the start above which its first outputs are far apart.

That of a head with a weight of its own is at most 1.
"""


class _Head(NamedTuple):
    """The last layer as it began.

    Args:
        weight: its name.
        rms: its first root mean square.
        inputs: of the layer.
    """

    weight: str
    rms: float
    inputs: float

    @property
    def factor(self) -> float:
        """By which the head makes independent inputs larger."""
        return float(self.rms * np.sqrt(self.inputs))


def has_large_tied_head(evidence: Evidence) -> bool:
    """Whether the last layer has the weight of an embedding, which made its first outputs far larger than its inputs."""
    head = _head(evidence, tied=True)
    return head is not None and head.factor > _LARGE


def has_large_head(evidence: Evidence) -> bool:
    """Whether the weight of the last layer made its first outputs far larger than its inputs."""
    head = _head(evidence, tied=False)
    return head is not None and head.factor > _LARGE


def size_of_tied_head(evidence: Evidence, begin: int) -> str:
    """The numbers of such a head, as a sentence behind another one; empty if there is none.

    Args:
        evidence: of the run.
        begin: the first step of the findings.
    """
    return _said(_head(evidence, tied=True))


def size_of_head(evidence: Evidence, begin: int) -> str:
    """The numbers of the last layer, as a sentence behind another one; empty if they are not known.

    Args:
        evidence: of the run.
        begin: the first step of the findings.
    """
    return _said(_head(evidence, tied=False))


def _said(head: _Head | None) -> str:
    if head is None:
        return ""
    return (
        f" {head.weight} began with a root mean square of {head.rms:.2g}, so that {head.inputs:.0f} inputs of 1 make outputs "
        f"of {head.factor:.2g}."
    )


def _head(evidence: Evidence, *, tied: bool) -> _Head | None:
    roles = roles_of(evidence)
    if roles is None or track_of(evidence, "param", "rms") is None:
        return None
    last = last_layer(evidence, roles)
    own = roles.weight(last)
    weight = _table_of(roles, last) if tied else "" if own is None or roles.role(last) != "linear" else own.name
    if not weight:
        return None
    inputs = inputs_of(roles, roles.parameters[weight].module)
    rms = float(starts(evidence, "param", "rms", (weight,))[0])
    return _Head(weight, rms, inputs) if np.isfinite(rms * inputs) else None


def _table_of(roles: Roles, layer: str) -> str:
    """The name of the weight of an embedding that a layer has too; empty if it has another one."""
    weight = roles.weight(layer)
    if weight is None or roles.role(layer) != "linear":
        return ""
    owners = (weight.module, *(each.rpartition(".")[0] for each in weight.others))
    return weight.name if any(roles.role(each) == "embedding" for each in owners) else ""
