"""Which rows of a batch are behind what a rule has found at a step, as a lookout has seen it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from lightning_hooks.health.evidence import Evidence
from lightning_hooks.health.rule import Symptom

ROWS_BEHIND: Final = ("rows-behind",)
"""The kinds of sightings that tell it."""


def rows_behind(evidence: Evidence, step: int) -> str:
    """A sentence on the rows that hold most of the gradient of a step, to be put behind another one; empty if none is known.

    Args:
        evidence: of the run.
        step: of the window.
    """
    sighting = evidence.sighting_at(ROWS_BEHIND[0], step)
    return "" if sighting is None else f". {sighting.text[:1].upper()}{sighting.text[1:]}"


def with_rows(symptoms: Sequence[Symptom], quoted: Symptom | None, evidence: Evidence, step: int) -> Iterator[Symptom]:
    """Symptoms, of which the one that the message quotes also tells the rows behind it.

    Args:
        symptoms: that have one reason.
        quoted: one of them; None if the message quotes none of them.
        evidence: of the run.
        step: at which they began.
    """
    behind = "" if quoted is None else rows_behind(evidence, step)
    for each in symptoms:
        yield replace(each, text=each.text + behind) if each is quoted and behind else each
