"""Rules on parameters and layers that are one, or that are meant to be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from lightning_hooks.health.rule import HealthRule, Kind


@dataclass(frozen=True, kw_only=True)
class TieBroken(HealthRule):
    """Two parameters are trained as two, though the code of the model ties them, or though they began as one.

    The code of the model says so in `__init__`, or by `config.tie_word_embeddings` of transformers: then it is a fact. A head
    that begins as a copy of an embedding may be one on purpose: it is information until the loss stands still.
    """

    patience: int = 1
    every_n_steps: int = 5
    family: ClassVar[str] = "facts"
    kind: ClassVar[Kind] = "pattern"
    looks_for: ClassVar[tuple[str, ...]] = ("tie-broken",)
    next_steps: ClassVar[tuple[str, ...]] = (
        "Tie the two again after what has replaced one of them, such as a new `Parameter`, a loaded state or pruning: "
        "`head.weight = embedding.weight`.",
        "Load numbers into a tied weight with `weight.data.copy_(…)`, and a checkpoint without `assign=True`.",
    )
    source: ClassVar[str] = "a definition: a tied parameter is one object"
    consequence: ClassVar[str] = (
        "The model has more parameters than planned, the two weights drift apart, and a checkpoint may load only one of them."
    )
    false_alarm: ClassVar[str] = (
        "A head may start as a copy of the embedding on purpose. Without a tie in the code the finding is information until "
        "the loss stands still."
    )


RULES: Final[tuple[HealthRule, ...]] = (TieBroken(),)
"""The rules on ties, with their defaults."""
